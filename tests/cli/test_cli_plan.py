#!/usr/bin/env python3
"""Tests of plans as a user meets them: for other machines, by rates, and what they say.

    python3 tests/cli/test_cli_plan.py path/to/shoal [part of a case's name]
"""

import json
import os
import re

from harness import SMALL, case, environment, expect, main, plan, refused, shoal

RATES = {"version": 4, "name": "a box", "origin": "measured", "linear_flops": 1e12,
         "attention_flops": 5e11, "conv_flops": 6e11, "weight_bytes": 1e11, "memory_bytes": 1e11, "link_bytes": 1e10,
         "unpinned_bytes": 1e9, "bounce_bytes": 5e9,
         "disk_bytes": 1e9, "disk_sequential_bytes": 1e9, "unpack_bytes": 1e10, "pack_bytes": 1e9,
         "copy_tax": 0.05, "read_tax": 0.0, "threads": 0, "vram_bytes": 0, "context_bytes": 0,
         "call_seconds": 0.0}


def write_rates(folder, file_name="r.json", text=None, **changes):
    rates = {key: value for key, value in {**RATES, **changes}.items() if value is not ...}
    path = os.path.join(folder, file_name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(rates) if text is None else text)
    return path


def known_cards():
    result = shoal("plan", "-p", "x", "--on", "abacus")
    refused(result, 2, "abacus", "rtx4060", "file of rates")
    return re.findall(r"\b(?:rtx\d+|l4|h200)\b", result.err)


@case
def plans_for_every_card(folder):
    cards = known_cards()
    expect(len(cards) == len(set(cards)) >= 6, cards)
    for card in cards:
        figures, result = plan("--on", card)
        expect(result.err == "" and figures["device"] == card == figures["rates"], result)
        expect(figures["vram_budget_bytes"] > 4 << 30, result, "the card's memory is the limit")
        expect(figures["seconds"] > figures["step_seconds"] > 0, result)
        result = shoal("plan", "-p", "x", "--on", card)
        expect(result.code == 0 and f"on {card}, " in result.out, result)
        expect("cpu" not in result.out and f"published: {card}" in result.out, result)
        expect(plan("--on", card, "--vram", "6MiB")[0]["vram_budget_bytes"] == 6 << 20, card)
    with open(os.path.join(os.path.dirname(__file__), "../../docs/shoal.1"),
              encoding="utf-8") as file:
        text = file.read()
    expect(all(card in text for card in cards), cards, "a card is not in the man page")


@case
def a_card_s_name_is_read_as_people_write_it(folder):
    for name in ("RTX4060", "RTX 4060", "rtx-4060"):
        figures, _ = plan("--on", name)
        expect(figures["device"] == figures["rates"] == "rtx4060", figures, name)
    for name in ("rtx4060 laptop", "RTX 4060 Laptop GPU"):
        refused(shoal("plan", "-p", "x", "--on", name), 2, name, "--on rtx4060", "slower",
                "lower bounds", "bench links")
    for name in ("rtx4060ti", "rtx406", "", " ", "rtx9999 laptop"):
        expect(shoal("plan", "-p", "x", "--on", name).code == 2, what=name)


@case
def a_card_that_is_not_here_has_a_driver_that_is_assumed(folder):
    assumed = "MiB assumed for the driver and libraries"
    expect(assumed in shoal("plan", "-p", "x", "--on", "rtx4060").out, what="published")
    measured = write_rates(folder, vram_bytes=1 << 30, context_bytes=1 << 20)
    out = shoal("plan", "-p", "x", "--on", measured).out
    expect("assumed" not in out and "MiB for the driver and libraries" in out, out)


@case
def cards_that_are_too_small_or_that_do_not_run(folder):
    result = shoal("plan", "-p", "x", "--on", "rtx4060", "--width", "16384", "--height", "16384")
    expect(result.code == 3 and "device memory: 8.00 GiB allowed, this plan needs" in result.out, result)
    expect("the memory of rtx4060" in result.err and "--vram" in result.err, result)
    expect("too small" not in result.out and result.err.count("too small") == 1, result, "said twice")
    for command in ("generate", "verify"):
        refused(shoal(command, "-p", "x", "--on", "rtx4060", folder=folder), 2, "--on")


@case
def what_has_no_effect_on_another_machine(folder):
    args = ["--on", "rtx4060", "--rates", "none", "--device", "cpu", "--threads", "3", "--pin"]
    for mode in ("staging", "off"):
        result = shoal("plan", "-p", "x", *args, mode)
        figures, _ = plan(*args, mode)
        expect(result.code == 0 and len(figures["notes"]) == 4, result, figures["notes"])
        for option in ("--rates has", "--device has", "--threads has", f"--pin {mode} has"):
            expect(result.out.count(f"note: {option} no effect") == 1, result)
            expect(any(note.startswith(option) for note in figures["notes"]), figures["notes"])
    defaults = ["--threads", "0", "--pin", "on"]
    expect(plan("--on", "rtx4060", *defaults)[0]["notes"] == [], what="defaults are no news")
    # The threads of another machine's CPU count: each has a buffer.
    figures, _ = plan("--on", write_rates(folder), "--threads", "3")
    expect(figures["notes"] == [], figures["notes"])
    expect(figures["process_bytes"] <
           plan("--on", write_rates(folder), "--threads", "9")[0]["process_bytes"], figures)


@case
def a_card_s_plan_says_which_link_and_disk_it_assumes(folder):
    for card in known_cards():
        result = shoal("plan", "-p", "x", "--on", card)
        found = re.search(card + r"; link ([\d.]+) GB/s, disk ([\d.]+) GB/s assumed\)", result.out)
        expect(found, result)
        figures, _ = plan("--on", card)
        expect(figures["rates_origin"] == "published", figures)
        for number, name in enumerate(("link", "disk"), 1):
            shown = float(found.group(number)) * 1e9
            expect(abs(figures[name + "_bytes_per_second"] / shown - 1) < 0.01, figures)
    figures, _ = plan("--on", write_rates(folder))
    expect(figures["rates_origin"] == "measured", figures)
    expect(figures["link_bytes_per_second"] == RATES["link_bytes"], figures)
    result = shoal("plan", "-p", "x", "--on", write_rates(folder))
    expect("assumed" not in result.out, result, "measured")
    expect(plan()[0]["rates_origin"] == "guessed", what="guessed")


@case
def plans_by_a_file_of_rates(folder):
    fast, slow = write_rates(folder), write_rates(folder, "slow.json", linear_flops=1e9)
    card = write_rates(folder, "card.json", name="my card", origin="published", vram_bytes=1 << 30,
                       context_bytes=1 << 20)
    for option in ("--on", "--rates"):
        figures, result = plan(option, fast)
        expect(figures["rates"] == "a box" and result.err == "", result)
        expect(figures["device"] == ("a box" if option == "--on" else "cpu"), result)
        expect(plan(option, slow)[0]["step_seconds"] > 10 * figures["step_seconds"], result)
        expect("rates measured: a box" in shoal("plan", "-p", "x", option, fast).out, option)
    two = write_rates(folder, "two.json", threads=2)
    for threads, said in (("1", True), ("2", False), ("0", False)):
        result = plan("--rates", two, "--threads", threads)[1]
        expect(("times are predicted for 2" in result.err) == said, result)
    figures = plan("--on", card)[0]
    expect(figures["vram_budget_bytes"] == 1 << 30 and figures["context_bytes"] == 1 << 20, figures)
    result = shoal("plan", "-p", "x", "--on", card, "--resident-blocks", "0")
    expect("my card" in result.out and "cpu" not in result.out, result)
    result = shoal("plan", "-p", "x")
    expect("rates guessed: shoal bench links" in result.out, result)
    os.makedirs(os.path.join(folder, "shoal"))
    write_rates(folder, "shoal/rates.json", name="kept")
    result = shoal("plan", "-p", "x", env=environment(XDG_CACHE_HOME=folder))
    expect("rates measured: kept" in result.out, result)
    write_rates(folder, "shoal/rates.json", name="kept", version=3)  # by a version that measured less
    result = shoal("plan", "-p", "x", env=environment(XDG_CACHE_HOME=folder))
    expect("rates guessed: shoal bench links" in result.out, result)
    write_rates(folder, "shoal/rates.json", text="")
    refused(shoal("plan", "-p", "x", env=environment(XDG_CACHE_HOME=folder)), 1, "shoal/rates.json", "remove", "bench links")
    result = shoal("generate", "-p", "x", "--json", "--rates", slow, *SMALL, folder=folder)
    expect(json.loads(result.out)["plan"]["rates"] == "a box", result)


@case
def what_is_not_pinned_is_predicted_to_be_slower(folder):
    slow = {"link_bytes": 1e8, "bounce_bytes": 5e7, "unpinned_bytes": 1e7}
    seconds = {}
    for name, vram in (("card", 1 << 30), ("box", 0)):
        rates = write_rates(folder, vram_bytes=vram, **slow)
        for mode in ("on", "staging", "off"):
            figures, _ = plan("--on", rates, "--resident-blocks", "0", "--wire", "raw", "--pin", mode)
            seconds[name, mode] = figures["step_seconds"]
            said = any("--pin" in note for note in figures["notes"])
            expect(said == (name == "box" and mode != "on"), figures)
    expect(seconds["card", "staging"] > 1.5 * seconds["card", "on"], seconds)
    expect(seconds["card", "off"] > 3 * seconds["card", "staging"], seconds)
    expect(seconds["box", "off"] == seconds["box", "on"], seconds, "a CPU copies from any memory")


@case
def long_times_are_hours_and_days(folder):
    for flops, unit in ((1e9, r"[\d.]+ s"), (1e7, r"3 min \d+ s"), (3e5, r"1 h \d+ min"),
                        (1e4, r"2 d \d+ h"), (2, r"115\d\d d \d+ h")):
        slow = write_rates(folder, linear_flops=flops)
        result = shoal("plan", "-p", "x", "--steps", "2", "--on", slow)
        seconds = plan("--steps", "2", "--on", slow)[0]["step_seconds"]
        found = re.search(f"predicted: ({unit}) a step", result.out)
        expect(found, result, (flops, seconds))
        if "s" not in found.group(1):
            parts = zip(*[iter(found.group(1).split())] * 2)
            shown = sum(int(n) * {"d": 86400, "h": 3600, "min": 60}[u] for n, u in parts)
            expect(shown <= seconds < shown + 3600, (shown, seconds))


@case
def json_says_what_1_gib_more_is_worth(folder):
    slow = ["--rates", write_rates(folder, link_bytes=1e6, disk_bytes=1e6)]
    for args, option in ((["--vram", "6MiB"], "vram"),
                         (["--resident-blocks", "0", "--ram", "18MiB"], "ram")):
        result = shoal("plan", "-p", "x", *slow, *args)
        expect(result.out.count(f"1 GiB more of --{option}: ") == 1, result)
        figures, _ = plan(*slow, *args)
        more = figures["more_" + option]
        steps, = [phase for phase in figures["phases"] if phase["phase"] == "steps"]
        expect(more["bytes"] == 1 << 30 and more["steps_seconds_now"] == steps["seconds"], figures)
        expect(0 < more["steps_seconds"] < 0.97 * steps["seconds"], more)
        expect("1 GiB more" not in shoal("plan", "-p", "x", *slow).out, option)
    figures, _ = plan(*slow)
    expect(figures["more_vram"] is None and figures["more_ram"] is None, figures)
    expect(figures["all_lanes"] == 2 == 2 * plan("--cfg", "1")[0]["all_lanes"], figures)


HOSTILE = [
    # a change to the file, words that the error must hold
    ({"text": ""}, ["JSON"]),
    ({"text": "[]"}, ["object"]),
    ({"text": "{" * 10000}, ["JSON"]),
    ({"text": '{"version": 1, "version": 1}'}, ["JSON"]),
    ({"version": 1}, ["version", "bench links"]),
    ({"version": ...}, ["version"]),
    ({"name": ""}, ["name"]),
    ({"name": 7}, ["name"]),
    ({"name": "x" * 100}, ["name"]),
    ({"name": "\x1b[31m"}, ["name"]),
    ({"origin": "dreamt"}, ["origin"]),
    ({"origin": ...}, ["origin"]),
    ({"speed": 1}, ["speed"]),
    ({"\x1b[31m": 1}, ["?[31m"]),
    ({"copy_tax": -0.1}, ["copy_tax"]),
    ({"read_tax": 101}, ["read_tax"]),
    ({"call_seconds": 2}, ["call_seconds"]),
    ({"call_seconds": -1e-6}, ["call_seconds"]),
    ({"vram_bytes": -1}, ["vram_bytes"]),
    ({"vram_bytes": 1.5}, ["vram_bytes"]),
    ({"vram_bytes": 100, "context_bytes": 100}, ["context_bytes", "vram_bytes"]),
]


@case
def hostile_rates_are_refused(folder):
    changes = list(HOSTILE)
    for member, value in RATES.items():
        if isinstance(value, str) or member == "version":
            continue
        changes += [({member: bad}, [member]) for bad in (..., None, "1", [], True)]
        if isinstance(value, float) and member not in ("copy_tax", "read_tax", "call_seconds"):
            changes += [({member: bad}, [member]) for bad in (0, -1, 1e300)]
    for change, words in changes:
        path = write_rates(folder, **change)
        for option in ("--rates", "--on"):
            try:
                refused(shoal("plan", "-p", "x", "--json", option, path), 1, "r.json", *words)
            except AssertionError as error:
                raise AssertionError(f"{change}: {error}") from None
    for path in ("none.json", ".", "/dev/zero"):
        result = shoal("plan", "-p", "x", "--json", "--rates", path, folder=folder)
        refused(result, 1, path)
    write_rates(folder, text="x")
    refused(shoal("generate", "-p", "x", "--rates", "r.json", "--json", folder=folder), 1, "r.json")
    expect(os.listdir(folder) == ["r.json"], os.listdir(folder))


@case
def what_a_plan_says(folder):
    result = shoal("plan", "-p", "x")
    expect("unlimited" not in result.out and result.out.count("no limit") == 2, result)
    expect("nothing copied after the first" in result.out, result)
    result = shoal("plan", "-p", "x", "--resident-blocks", "0", "--ram", "15MiB", "--steps", "1")
    expect("read from disk" in result.out and "15.00 MiB allowed" in result.out, result)
    expect("which loads" not in result.out, result, "of a single step")
    result = shoal("plan", "-p", "x", "--wire", "packed", "--vram", "6MiB")
    expect("are packed while they are read" in result.out, result)
    expect("note" not in result.out, result)
    figures, _ = plan("--wire", "packed", "--vram", "6MiB")
    expect(figures["packed_blocks"] > 0 and figures["packed_while_read"], figures)
    for args, word in ((["--vram", "6MiB", "--steps", "1"], "crosses only once"),
                       ([], "stays on the device")):
        result = shoal("plan", "--json", "-p", "x", "--wire", "packed", *args)
        expect(result.code == 0 and "--wire packed has no effect" in result.err, result)
        expect(word in result.err, result)
        expect("wire packed has no effect" in shoal("plan", "-p", "x", "--wire", "packed",
                                                    *args).out, args)
    expect(plan("--wire", "raw", "--vram", "6MiB")[0]["notes"] == [], what="raw takes effect")


@case
def a_size_that_lacks_its_unit_is_said_to(folder):
    for option in ("--vram", "--ram"):
        for size, hint in (("8", True), ("8000", True), ("1MiB", False)):
            result = shoal("plan", "-p", "x", option, size)
            expect(result.code == 3 and "too small" in result.err, result)
            expect(("is a unit missing, as in 8GiB?" in result.err) == hint, result)


@case
def the_vae_works_in_strips_where_memory_is_short(folder):
    size = ("--width", "256", "--height", "256")
    whole, _ = plan(*size, "--vae-strips", "off")
    strips, _ = plan(*size, "--vae-strips", "on")
    auto, _ = plan(*size)
    expect(whole["strip_blocks"] == auto["strip_blocks"] == 0 < strips["strip_blocks"], strips)
    expect(auto["least_vram_bytes"] == strips["least_vram_bytes"] < whole["least_vram_bytes"], auto)
    expect(strips["seconds"] > whole["seconds"], strips)
    vram = ("--vram", str(whole["least_vram_bytes"] - 1))
    expect(plan(*size, *vram)[0]["strip_blocks"] > 0, vram)
    result = shoal("plan", "-p", "x", *size, *vram, "--vae-strips", "off")
    expect(result.code == 3 and str(whole["least_vram_bytes"]) in result.err, result)
    expect("decode: " not in shoal("plan", "-p", "x", *size).out, what="nothing to say")
    result = shoal("plan", "-p", "x", *size, *vram)
    expect("work in strips: " in result.out and "% more arithmetic" in result.out, result)


@case
def what_a_plan_says_of_the_device(folder):
    for name in ("abacus", "cuda:x", "cuda:99"):
        refused(shoal("plan", "-p", "x", "--device", name), 2, "device", name, "cuda:N")
    result = shoal("plan", "-p", "x", env=environment(SHOAL_DEVICE="abacus"))
    refused(result, 2, "SHOAL_DEVICE", "abacus")
    result = shoal("plan", "-p", "x", "--device", "cpu", env=environment(SHOAL_DEVICE="abacus"))
    expect(result.code == 0 and "shoal-mini on cpu" in result.out, result)
    result = shoal("plan", "-p", "x", env=environment(SHOAL_DEVICE=""))
    on_card = "shoal-mini on cuda" in result.out
    expect(on_card or "computing on the CPU:" in result.out, result, "says why not on a card")
    for mode in ("staging", "off"):
        result = shoal("plan", "-p", "x", "--pin", mode)
        expect(result.code == 0 and "pin has no effect" in result.out, result)
    refused(shoal("plan", "-p", "x", "--pin", "maybe"), 2, "--pin", "maybe")


if __name__ == "__main__":
    main()
