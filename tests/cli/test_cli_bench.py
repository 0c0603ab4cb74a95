#!/usr/bin/env python3
"""Tests of shoal bench links as a user meets it. That the figures are true is for BENCH.md.

    python3 tests/cli/test_cli_bench.py path/to/shoal [part of a case's name]
"""

import json
import os
import signal
import subprocess
import time

from harness import SHOAL, TIMEOUT, case, default_signals, environment, expect, main, refused, shoal

RATES = ["linear_flops", "attention_flops", "conv_flops", "weight_bytes", "memory_bytes", "link_bytes",
         "disk_bytes", "disk_sequential_bytes", "pack_bytes", "unpack_bytes"]


def read_rates(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)


@case
def bench_links_stores_what_it_says(folder):
    result = shoal("bench", "links", "--json", "--rates", "r.json", folder=folder)
    expect(result.code == 0 and result.err == "", result)
    figures, rates = json.loads(result.out), read_rates(folder, "r.json")
    expect(os.listdir(folder) == ["r.json"] and figures["rates"] == "r.json", result)
    for name in RATES:
        expect(rates[name] > 1e6, rates, name)
        expect(abs(figures[name] / rates[name] - 1) < 1e-4, result, name)
    for name in ("copy_tax", "read_tax"):
        expect(rates[name] >= 0 and abs(figures[name] - rates[name]) < 1e-4, result, name)
    expect(rates["origin"] == "measured", rates)
    expect(0.6 < figures["packed_part"] < 0.75, result)
    expect("diffusion_pytorch_model" in figures["file"] and figures["reader"], result)


@case
def bench_links_finds_the_place_for_rates(folder):
    with open(os.path.join(folder, "big"), "wb") as file:
        file.write(os.urandom(1 << 20) * 9 + b"x" * 1000) # its end is no whole page
    cache = os.path.join(folder, "a/b")
    result = shoal("bench", "links", "--file", "big", "--threads", "1", folder=folder,
                   env=environment(XDG_CACHE_HOME=cache))
    expect(result.code == 0 and result.err == "", result)
    expect(f"stored in {cache}/shoal/rates.json" in result.out, result)
    expect("big (9" in result.out.replace(", ", " (") and "1 thread;" in result.out, result)
    expect("that is small" in result.out, result)
    expect(read_rates(cache, "shoal/rates.json")["disk_bytes"] > 0, result)


@case
def bench_refuses_before_it_measures(folder):
    with open(os.path.join(folder, "empty"), "wb"):
        pass
    links = ["bench", "links", "--rates", "r.json"]
    for args, code, words in ((["bench"], 2, ["links"]), (["bench", "lynx"], 2, ["lynx", "links"]),
                              (["bench", "links", "x"], 2, ["'x'"]),
                              ([*links, "--steps", "2"], 2, ["--steps"]),
                              ([*links, "--threads", "-1"], 2, ["--threads"]),
                              ([*links, "--device", "abacus"], 2, ["abacus", "cpu"]),
                              ([*links, "--file", "a", "-m", "b"], 2, ["--file", "--model"]),
                              ([*links, "--file", "none"], 1, ["none"]),
                              ([*links, "--file", "."], 1, ["."]),
                              ([*links, "--file", "empty"], 2, ["empty"]),
                              ([*links, "-m", "none"], 1, ["none"]),
                              (["bench", "links", "--rates", "no/r.json"], 2, ["--rates", "no"]),
                              (["bench", "links", "--rates", "/dev/null"], 2, ["--rates"])):
        start = time.monotonic()
        refused(shoal(*args, folder=folder), code, *words)
        expect(time.monotonic() - start < 5, args, "it measured first")
    for changes, words in (({"XDG_CACHE_HOME": "/proc/none"}, ["/proc/none", "--rates"]),
                           ({"XDG_CACHE_HOME": "none", "HOME": ""}, ["HOME", "--rates"]),
                           ({"XDG_CACHE_HOME": "", "HOME": os.path.join(folder, "empty")},
                            ["empty", "--rates"])):
        refused(shoal("bench", "links", folder=folder, env=dict(environment(), **changes)), 1,
                *words)
    expect(os.listdir(folder) == ["empty"], os.listdir(folder))


@case
def ctrl_c_stops_bench(folder):
    run = subprocess.Popen([SHOAL, "bench", "links", "--rates", "r.json"], cwd=folder,
                           env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           preexec_fn=default_signals)
    time.sleep(1.5)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=TIMEOUT)
    expect(run.returncode == 130 and out == b"", err)
    expect(os.listdir(folder) == [], os.listdir(folder))


if __name__ == "__main__":
    main()
