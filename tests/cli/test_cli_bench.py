#!/usr/bin/env python3
"""Tests of shoal bench links and stream as a user meets them. That the figures are true is for BENCH.md.

    python3 tests/cli/test_cli_bench.py path/to/shoal [part of a case's name]
"""

import json
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from harness import (SHOAL, TIMEOUT, case, default_signals, environment, expect, main, refused,
                     shoal, small_files_only)

RATES = ["linear_flops", "attention_flops", "conv_flops", "weight_bytes", "memory_bytes", "link_bytes",
         "unpinned_bytes", "bounce_bytes",
         "disk_bytes", "disk_sequential_bytes", "pack_bytes", "unpack_bytes"]
GOOD_RATES = '{"linear_flops": 1e12}'
MIB = 1 << 20


def read_rates(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)


def links_as_json(folder):
    result = shoal("bench", "links", "--json", "--rates", "r.json", folder=folder)
    expect(result.code == 0 and result.err == "", result)
    figures, rates = json.loads(result.out), read_rates(folder, "r.json")
    expect(os.listdir(folder) == ["r.json"] and figures["rates"] == "r.json", result)
    for name in RATES:
        expect(rates[name] > 1e6, rates, name)
        expect(abs(figures[name] / rates[name] - 1) < 1e-4, result, name)
    expect(0 <= rates["call_seconds"] < 1e-3 and figures["call_seconds"] == rates["call_seconds"], result)
    for name in ("copy_tax", "read_tax"):
        expect(rates[name] >= 0 and abs(figures[name] - rates[name]) < 1e-4, result, name)
    expect(rates["origin"] == "measured" and rates["threads"] == figures["threads"], rates)
    expect(figures["spread"] >= 1, result)
    expect(any("was busy" in note for note in figures["notes"]) == (figures["spread"] > 1.3), result)
    # The machine has a name, by which plans of others call it.
    expect(rates["name"] not in ("", "this machine") and "  " not in rates["name"], rates)
    result = shoal("plan", "-p", "x", "--on", "./r.json", folder=folder)
    expect(f"on {rates['name']}, " in result.out, result)
    expect(f"rates measured: {rates['name']}" in result.out, result)
    expect(0.6 < figures["packed_part"] < 0.75, result)
    expect("diffusion_pytorch_model" in figures["file"] and figures["reader"], result)


def links_of_a_file(folder):
    with open(os.path.join(folder, "big"), "wb") as file:
        file.write(os.urandom(MIB) * 15 + b"x" * 1000) # its end is no whole page
    cache = os.path.join(folder, "a/b")
    result = shoal("bench", "links", "--file", "big", "--threads", "1", folder=folder,
                   env=environment(XDG_CACHE_HOME=cache))
    expect(result.code == 0 and result.err == "", result)
    expect(f"stored in {cache}/shoal/rates.json" in result.out, result)
    expect("big (15" in result.out.replace(", ", " (") and "1 thread;" in result.out, result)
    expect("that is small" in result.out, result)
    expect(read_rates(cache, "shoal/rates.json")["disk_bytes"] > 0, result)


@case
def bench_links_stores_what_it_says_where_it_says(folder):
    # At once: what each measures is its own affair, and takes twenty seconds.
    with ThreadPoolExecutor() as pool:
        runs = []
        for check in (links_as_json, links_of_a_file):
            own = os.path.join(folder, check.__name__)
            os.mkdir(own)
            runs.append(pool.submit(check, own))
    for run in runs:
        run.result()


@case
def bench_refuses_before_it_measures(folder):
    for name, size in (("empty", 0), ("tiny", 5), ("small", 15 * MIB - 1)):
        with open(os.path.join(folder, name), "wb") as file:
            file.truncate(size)
    with open(os.path.join(folder, "r.json"), "w", encoding="utf-8") as file:
        file.write(GOOD_RATES)
    links = ["bench", "links", "--rates", "r.json"]
    for args, code, words in ((["bench"], 2, ["links"]), (["bench", "lynx"], 2, ["lynx", "links"]),
                              (["bench", "links", "x"], 2, ["'x'"]),
                              ([*links, "--steps", "2"], 2, ["--steps"]),
                              ([*links, "--threads", "-1"], 2, ["--threads"]),
                              ([*links, "--device", "abacus"], 2, ["abacus", "cpu"]),
                              ([*links, "--file", "a", "-m", "b"], 2, ["--file", "--model"]),
                              ([*links, "--file", "none"], 1, ["none"]),
                              ([*links, "--file", "."], 1, ["."]),
                              ([*links, "--file", "empty"], 2, ["empty", "0 B", "--file"]),
                              ([*links, "--file", "tiny"], 2, ["tiny", "5 B", "15.00 MiB"]),
                              ([*links, "--file", "small"], 2, ["small", "15.00 MiB", "several GiB"]),
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
    refused(shoal("bench", "links", "--file", "tiny", folder=folder,
                  env=environment(XDG_CACHE_HOME=os.path.join(folder, "a/b"))), 2, "tiny")
    expect(sorted(os.listdir(folder)) == ["empty", "r.json", "small", "tiny"], os.listdir(folder))
    with open(os.path.join(folder, "r.json"), encoding="utf-8") as file:
        expect(file.read() == GOOD_RATES, what="the rates were replaced")


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


# ---- bench stream ----

SMALL_STREAM = ["bench", "stream", "--blocks", "12", "--block-size", "4MiB", "--tokens", "8",
                "--steps", "3"]


def stream(folder, *args):
    """A run's figures; its file is gone, and so are those of others."""
    result = shoal(*SMALL_STREAM, "--json", *args, env=environment(TMPDIR=folder))
    expect(result.code == 0 and result.err == "", result)
    expect(os.listdir(folder) == [], os.listdir(folder))
    figures = json.loads(result.out)
    expect(figures["identical"] and len(figures["checksum"]) == 16, figures)
    for name in ("resident_step_seconds", "link_bytes", "first_step_seconds", "step_seconds",
                 "limit_seconds", "step_operations"):
        expect(figures[name] > 0, figures, name)
    for name in ("step", "resident_step"):
        expect(figures[f"best_{name}_seconds"] <= figures[f"{name}_seconds"] * 1.0001, figures)
    for name in ("step_copy", "step_read"):
        expect(figures[f"{name}_bytes"] == figures[f"planned_{name}_bytes"], figures, name)
    expect(figures["peak_vram_bytes"] == figures["planned_vram_bytes"], figures)
    ratio = figures["step_seconds"] / figures["limit_seconds"]
    expect(abs(figures["step_over_limit"] / ratio - 1) < 1e-3, figures)
    busy = any("was busy" in note for note in figures["notes"])
    expect(busy == (figures["step_over_limit"] < 0.9), figures)
    expect(figures["limit_seconds"] >= figures["resident_step_seconds"], figures)
    return figures


def noted(figures, *words):
    expect(any(all(word in note for word in words) for note in figures["notes"]), figures, words)


@case
def bench_stream_streams_raw_weights(folder):
    figures = stream(folder, "--wire", "raw")
    expect(figures["blocks"] == 12 and figures["distinct_blocks"] == 4, figures)
    expect(figures["block_bytes"] == 4 * MIB and figures["tokens"] == 8, figures)
    expect(figures["step_copy_bytes"] == figures["step_weight_bytes"] == 48 * MIB, figures)
    expect(figures["packed_blocks"] == figures["resident_blocks"] == 0, figures)
    expect(figures["step_read_bytes"] == figures["disk_blocks"] == 0, figures)
    expect(figures["disk_bytes"] is None and figures["unpack_bytes"] is None, figures)
    expect(48 * MIB < figures["ram_bytes"] < 64 * MIB, figures)
    expect(figures["limit"] in ("arithmetic", "link"), figures)
    noted(figures, "CPU", "limit")


@case
def bench_stream_gives_the_same_whatever_the_plan(folder):
    raw = stream(folder, "--wire", "raw", "--prefetch-slots", "3")
    expect(raw["prefetch_slots"] == 3 and 12 * MIB < raw["peak_vram_bytes"] < 13 * MIB, raw)
    plans = []
    packed = stream(folder, "--wire", "packed", "--threads", "1")
    plans.append(packed)
    expect(packed["packed_blocks"] == 12 and packed["threads"] == 1, packed)
    expect(0.6 < packed["step_copy_bytes"] / packed["step_weight_bytes"] < 0.75, packed)
    expect(packed["unpack_bytes"] > 0 and 0.6 < packed["packed_part"] < 0.75, packed)
    single = stream(folder, "--buffer", "single", "--wire", "raw", "--pin", "off")
    plans.append(single)
    expect(single["prefetch_slots"] == 1, single)
    noted(single, "--pin", "no effect")
    disk = stream(folder, "--ram", "40MiB", "--wire", "raw")
    plans.append(disk)
    expect(disk["disk_blocks"] > 0 and disk["disk_bytes"] > 0, disk)
    expect(disk["step_read_bytes"] >= disk["disk_blocks"] * 4 * MIB, disk)
    expect(disk["ram_bytes"] <= 40 * MIB, disk)
    resident = stream(folder, "--resident-blocks", "auto", "--vram", "30MiB", "--wire", "raw")
    plans.append(resident)
    expect(0 < resident["resident_blocks"] < 12, resident)
    expect(resident["peak_vram_bytes"] <= 30 * MIB, resident)
    expect(resident["step_copy_bytes"] == (12 - resident["resident_blocks"]) * 4 * MIB, resident)
    whole = stream(folder, "--resident-blocks", "12", "--prefetch-slots", "2", "--wire", "packed")
    plans.append(whole)
    expect(whole["prefetch_slots"] == 0 and whole["delivered_bytes"] is None, whole)
    noted(whole, "--prefetch-slots has no effect")
    noted(whole, "--wire packed", "no effect")
    for figures in plans:
        expect(figures["checksum"] == raw["checksum"], figures, raw)
    other = stream(folder, "--tokens", "9", "--wire", "raw")
    expect(other["checksum"] != raw["checksum"], other)
    odd = stream(folder, "--blocks", "3", "--block-size", "1100kB", "--steps", "2")
    expect(odd["distinct_blocks"] == 3 and MIB <= odd["block_bytes"] <= 1100000, odd)
    noted(odd, "blocks are of")


@case
def bench_stream_prints_a_table(folder):
    result = shoal(*SMALL_STREAM, "--dir", ".", "--wire", "packed", folder=folder,
                   env=environment(TMPDIR="/nonexistent"))
    expect(result.code == 0 and result.err == "" and os.listdir(folder) == [], result)
    for words in ("12 blocks of 4.00 MiB, of which 4 differ; 8 tokens, 3 steps", "alone",
                  "unpacking", "streamed", "x the link's rate", "step / limit", "12 packed",
                  "to the bit"):
        expect(words in result.out, result, words)
    expect("\ndisk" not in result.out, result)


@case
def bench_stream_refuses_before_it_measures(folder):
    small = [*SMALL_STREAM, "--dir", "."]
    for args, code, words in (([*small, "--tokens", "0"], 2, ["--tokens", "1 to 65536"]),
                              ([*small, "--blocks", "1001"], 2, ["--blocks", "1 to 1000"]),
                              ([*small, "--steps", "1"], 2, ["--steps", "2 to 1000"]),
                              ([*small, "--block-size", "1"], 2, ["--block-size", "1 MiB"]),
                              ([*small, "--block-size", "2TiB"], 2, ["--block-size", "1 TiB"]),
                              ([*small, "--block-size", "big"], 2, ["--block-size", "'big'"]),
                              ([*small, "--resident-blocks", "13"], 2, ["resident", "13", "12"]),
                              ([*small, "--wire", "fast"], 2, ["--wire", "packed, raw or auto"]),
                              ([*small, "--device", "abacus"], 2, ["abacus", "cpu"]),
                              ([*small, "--buffer", "single", "--prefetch-slots", "2"], 2,
                               ["--prefetch-slots", "--buffer single"]),
                              ([*small, "--file", "x"], 2, ["--file"]),
                              ([*small, "--dir", ""], 2, ["--dir"]),
                              ([*small, "x"], 2, ["'x'"]),
                              (["bench", "--tokens", "2", "stream"], 2, ["--tokens"]),
                              (["bench", "--json", "stream"], 2, ["shoal bench stream"]),
                              (["bench", "links", "--tokens", "2"], 2, ["--tokens"]),
                              ([*small, "--vram", "1MiB"], 3, ["--vram", "least"]),
                              ([*small, "--ram", "9MiB"], 3, ["--ram", "least"]),
                              ([*small, "--ram", "30MiB", "--wire", "packed"], 3,
                               ["--ram", "leave --wire out"]),
                              ([*small, "--dir", "none"], 1, ["none", "--dir"]),
                              (["bench", "stream", "--block-size", "1TiB", "--dir", "."], 1,
                               ["4.00 TiB", "free", "--dir", "--block-size"])):
        start = time.monotonic()
        refused(shoal(*args, folder=folder), code, *words)
        # What packs is known when the file has been written.
        expect(time.monotonic() - start < (30 if "packed" in args else 5), args,
               "it measured first")
        expect(os.listdir(folder) == [], os.listdir(folder))
    refused(shoal(*small, folder=folder, before=small_files_only), 1, "--dir", "too large")
    expect(os.listdir(folder) == [], os.listdir(folder))


@case
def bench_stream_names_the_least_budgets(folder):
    for option in ("--vram", "--ram"):
        result = shoal(*SMALL_STREAM, option, "1MiB", folder=folder)
        least = re.search(rf"least .* {option} (\d+) ", result.err)
        expect(result.code == 3 and least, result)
        figures = stream(folder, option, least[1])
        expect(figures["peak_vram_bytes" if option == "--vram" else "ram_bytes"] <= int(least[1]),
               figures, least[1])
        refused(shoal(*SMALL_STREAM, option, str(int(least[1]) - 1), folder=folder), 3, option)


@case
def ctrl_c_stops_bench_stream(folder):
    for seconds, signals in ((0.3, 1), (1.5, 1), (3, 1), (1.5, 2)):
        run = subprocess.Popen([SHOAL, "bench", "stream", "--blocks", "12", "--block-size",
                                "16MiB", "--steps", "1000", "--dir", "."], cwd=folder,
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=default_signals)
        time.sleep(seconds)
        for _ in range(signals):
            run.send_signal(signal.SIGINT)
            time.sleep(0.05)
        out, err = run.communicate(timeout=TIMEOUT)
        expect(run.returncode in (130, -signal.SIGINT) and out == b"", err, run.returncode)
        expect(os.listdir(folder) == [], os.listdir(folder))


@case
def bench_stream_killed_leaves_no_file(folder):
    run = subprocess.Popen([SHOAL, *SMALL_STREAM, "--dir", "."], cwd=folder, env=environment(),
                           stdout=subprocess.DEVNULL)
    time.sleep(1)
    expect(run.poll() is None and os.listdir(folder) == [], os.listdir(folder))
    run.kill()
    run.wait(TIMEOUT)
    expect(os.listdir(folder) == [], os.listdir(folder))


if __name__ == "__main__":
    main()
