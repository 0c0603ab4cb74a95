#!/usr/bin/env python3
"""Tests of the program as a user meets it: options, output, files, signals.

    python3 tests/cli/test_cli.py path/to/shoal [part of a case's name]

What the library computes is tested elsewhere; models in test_cli_models.py, host memory and tiers in
test_cli_memory.py, plans in test_cli_plan.py, `shoal trace` in test_cli_trace.py.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time

from harness import (COMMANDS, SHOAL, SMALL, SOURCE, TIMEOUT, case, default_signals, environment,
                     expect, main, plan, png_chunks, png_size, png_texts, refused, shoal,
                     small_files_only)


OLD_PNG = b"\x89PNG\r\n\x1a\nold"


# ---- help and bad options ----


@case
def help_is_everywhere(folder):
    expect(all(name in shoal("--help").out for name in COMMANDS), what="--help lists all commands")
    for name in [*COMMANDS, "bench stream"]:
        words = name.split()
        for args in ([*words, "--help"], [*words, "-h"], ["help", *words]):
            result = shoal(*args)
            expect(result.code == 0 and result.out.startswith(f"usage: shoal {name}"), result)
            expect(result.err == "", result)
            expect(max(map(len, result.out.splitlines())) <= 80, result, "wider than 80 columns")
    expect(re.fullmatch(r"shoal \d+\.\d+\.\d+\n", shoal("--version").out), what="--version")


def options_in_help():
    return {option for name in [*COMMANDS, "bench stream"]
            for option in re.findall(r"--[a-z][a-z-]+", shoal(*name.split(), "--help").out)}


@case
def man_page_and_completions_know_every_option(folder):
    for path in ("docs/shoal.1", "completions/shoal.bash", "completions/_shoal",
                 "completions/shoal.fish"):
        with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
            text = file.read().replace("\\-", "-")
        for option in options_in_help():
            word = "-l " + option[2:] if path.endswith(".fish") else option
            expect(re.search(re.escape(word) + r"\b", text), path, f"{option} is missing")
        for name in COMMANDS:
            expect(name in text, path, f"{name} is missing")


@case
def no_or_unknown_command(folder):
    result = shoal()
    expect(result.code == 2 and "usage:" in result.err and result.out == "", result)
    refused(shoal("genrate"), 2, "genrate", "generate")
    refused(shoal("xyzzy"), 2, "xyzzy", "inspect")


@case
def no_argument_of_help_and_version_is_ignored(folder):
    """Found by a hostile tester: what came after them had no effect."""
    for args, word in ((["--version", "x"], "'x'"), (["-V", "--json"], "'--json'"),
                       (["-h", "--steps"], "'--steps'"), (["--help", "generate"], "'generate'"),
                       (["help", "--trace", "t.json"], "'--trace'"),
                       (["help", "generate", "x"], "'x'"), (["help", "generate", "-p", "x"], "'-p'"),
                       (["help", "generate", "stream"], "'stream'"),
                       (["help", "bench", "lynx"], "'lynx'"),
                       (["help", "bench", "stream", "--json"], "'--json'"),
                       (["help", "help"], "'help'"), (["help", "genrate"], "generate")):
        refused(shoal(*args, folder=folder), 2, word)
    for args in (["help"], ["help", "bench", "links"], ["-V"], ["-h"]):
        result = shoal(*args)
        expect(result.code == 0 and result.err == "" and result.out, result, args)


BAD_OPTIONS = [
    # arguments after `generate -p x`, words that the error must hold
    (["--stepz", "4"], ["--stepz", "--steps"]),
    (["--frobnicate"], ["--frobnicate", "--help"]),
    (["-q"], ["-q", "--help"]),
    (["--s", "4"], ["--s", "more than one"]),
    (["--json=1"], ["--json", "no value"]),
    (["--steps"], ["--steps", "needs a value"]),
    (["-o"], ["-o", "needs a value"]),
    (["--steps", "4x"], ["--steps", "'4x'", "1 to 1000"]),
    (["--steps", ""], ["--steps", "1 to 1000"]),
    (["--steps", " 4"], ["--steps", "1 to 1000"]),
    (["--steps", "4.5"], ["--steps", "'4.5'"]),
    (["--steps", "0"], ["--steps", "out of range", "1 to 1000"]),
    (["--steps", "-3"], ["--steps", "out of range"]),
    (["--steps", "99999999999999999999"], ["--steps", "out of range"]),
    (["--count", "65"], ["--count", "1 to 64"]),
    (["--width", "100"], ["--width", "96 or 112"]),
    (["--height", "8"], ["--height", "16 to"]),
    (["--cfg", "nan"], ["--cfg", "not a number"]),
    (["--cfg", "inf"], ["--cfg", "not a number"]),
    (["--cfg", "2,5"], ["--cfg", "'2,5'"]),
    (["--cfg", "1e9"], ["--cfg", "out of range"]),
    (["--shift", "0"], ["--shift", "out of range"]),
    (["--seed", "-1"], ["--seed", "random"]),
    (["--seed", "0x10"], ["--seed", "random"]),
    (["--seed", "18446744073709551616"], ["--seed", "18446744073709551615"]),
    (["--vram", "3XB"], ["--vram", "'3XB'", "3GiB"]),
    (["--vram", "-1GiB"], ["--vram", "'-1GiB'"]),
    (["--vram", "1e5"], ["--vram"]),
    (["--vram", "1E5"], ["--vram"]),
    (["--ram", ""], ["--ram"]),
    (["--ram", "99999999TiB"], ["--ram"]),
    (["--prefetch-slots", "7"], ["--prefetch-slots", "2 to 6", "auto"]),
    (["--prefetch-slots", "1"], ["--prefetch-slots", "2 to 6"]),
    (["--resident-blocks", "-2"], ["--resident-blocks", "auto"]),
    (["--buffer", "triple"], ["--buffer", "double, single"]),
    (["--vae-strips", "16"], ["--vae-strips", "'16'", "on, off or auto"]),
    (["--host-format", "fast"], ["--host-format", "'fast'", "compute or storage"]),
    (["--wire", "fast"], ["--wire", "'fast'", "packed, raw or auto"]),
    (["--rates", ""], ["--rates is empty"]),
    (["--on", "rtx4060"], ["--on"]),
    (["--lanes", "0"], ["--lanes", "1 to"]),
    (["--threads", "-1"], ["--threads", "0 to"]),
    (["--resident-blocks", "9999"], ["9999", "between 0 and"]),
    (["--sampler", "dpm"], ["--sampler", "dpm", "euler, euler_ancestral, heun, dpmpp_2m, uni_pc"]),
    (["--schedule", "sgm"], ["--schedule", "sgm", "model, simple, normal, karras"]),
    (["--schedule", "beta", "--steps", "900"], ["steps", "900", "beta"]),
    (["--strength", "0.5"], ["--strength", "--init"]),
    (["--init", "x.png", "--strength", "0"], ["--strength", "out of range"]),
    (["--init", "x.png", "--strength", "1.1"], ["--strength", "out of range"]),
    (["--init", ""], ["--init is empty"]),
    (["--buffer", "single", "--prefetch-slots", "2"], ["--prefetch-slots", "--buffer single"]),
    (["--dit", "a"], ["--text-encoder", "--vae"]),
    (["--tokenizer", "a"], ["--dit", "--text-encoder", "--vae"]),
    (["a", "cat"], ["'a'", "-p"]),
    (["-m", ""], ["--model is empty"]),
    (["--dit", "", "--text-encoder", "a", "--vae", "a"], ["--dit is empty"]),
    (["-m", "mini", "--tokenizer", ""], ["--tokenizer is empty"]),
    (["--trace"], ["--trace", "needs a value"]),
    (["--trace", ""], ["--trace is empty"]),
    (["--from", "1"], ["unknown option --from"]),
    (["-o", "-", "--json"], ["--output", "--json"]),
    (["-o", "-", "--count", "2"], ["--output", "--count"]),
]


@case
def bad_options_name_the_option(folder):
    for args, words in BAD_OPTIONS:
        try:
            refused(shoal("generate", "-p", "x", *args, folder=folder), 2, *words)
        except AssertionError as error:
            raise AssertionError(f"{args}: {error}") from None
    expect(os.listdir(folder) == [], what="a refused run left a file")


@case
def bad_arguments_of_the_other_commands(folder):
    refused(shoal("generate"), 2, "prompt", "-p")
    refused(shoal("inspect"), 2, "file")
    refused(shoal("inspect", ""), 2, "empty")
    refused(shoal("inspect", "a", "b"), 2, "'b'")
    refused(shoal("inspect", "--steps", "1", "a"), 2, "--steps")
    refused(shoal("devices", "cpu"), 2, "'cpu'")
    refused(shoal("devices", "--device", "cpu"), 2, "--device")


@case
def device_that_is_not_there(folder):
    refused(shoal("generate", "-p", "x", "--device", "abacus", *SMALL, folder=folder), 2,
            "abacus", "cpu")


# ---- plan ----


@case
def plan_as_text_and_json(folder):
    result = shoal("plan", "-p", "a red apple")
    expect(result.code == 0 and len(result.out.splitlines()) > 3 and result.err == "", result)
    figures, result = plan()
    expect(result.err == "", result)
    for name in ("least_vram_bytes", "peak_vram_bytes"):
        expect(isinstance(figures[name], int) and figures[name] > 0, result, name)
    expect(figures["least_vram_bytes"] <= figures["peak_vram_bytes"], result)


@case
def plan_least_budget_works_and_one_byte_less_is_refused(folder):
    least = plan()[0]["least_vram_bytes"]
    figures, result = plan("--vram", str(least))
    expect(result.code == 0 and figures["peak_vram_bytes"] <= least, result)
    figures, result = plan("--vram", str(least - 1))
    expect(result.code == 3 and str(least) in result.err, result)
    expect(figures["least_vram_bytes"] == least, result, "the least budget depends on the budget")
    result = shoal("generate", "-p", "a red apple", "--vram", str(least - 1), "--json",
                   folder=folder)
    refused(result, 3, str(least))
    expect(os.listdir(folder) == [], result)


@case
def plan_never_exceeds_the_budget(folder):
    figures, _ = plan()
    least, full = figures["least_vram_bytes"], figures["peak_vram_bytes"]
    for part in range(0, 11):
        budget = least + (full - least) * part // 10
        figures, result = plan("--vram", str(budget))
        expect(result.code == 0 and figures["peak_vram_bytes"] <= budget, result, budget)


@case
def sizes_are_read_as_written(folder):
    for text in ("64MiB", "65536KiB", "67108864", "67108864B", "0.0625GiB", "64mib", "64 MiB"):
        figures, result = plan("--vram", text)
        expect(figures["vram_budget_bytes"] == 64 << 20, result, text)
    expect(plan("--vram", "64MB")[0]["vram_budget_bytes"] == 64000000, what="64MB")


@case
def options_without_effect_are_noted(folder):
    for args, words in (
            (["-n", "blur", "--cfg", "1"], ["--negative", "--cfg"]),
            (["--prefetch-slots", "3"], ["--prefetch-slots has no effect"]),
            (["--buffer", "double"], ["--buffer has no effect"]),
            (["--lanes", "100"], ["--lanes 100"]),
            (["--vae-strips", "on", "--width", "16", "--height", "16"], ["--vae-strips on"]),
            (["-o", "x.png"], ["--output", "no effect"])):
        result = shoal("plan", "--json", "-p", "x", *args, folder=folder)
        expect(result.code in (0, 2), result, args)
        expect(all(word in result.err for word in words), result, args)
        result = shoal("plan", "-p", "x", *args, folder=folder)
        expect("note: " in result.out + result.err, result, args)
    expect("stands in" in shoal("plan").err, what="a prompt that stands in is named")


@case
def messages_name_what_was_given_and_as_it_is_typed(folder):
    for args, start in ((["--prefetch-slots", "3"], "--prefetch-slots has no effect: every"),
                        (["--buffer", "single"], "--buffer has no effect: every"),
                        (["--buffer", "double", "--prefetch-slots", "3"],
                         "--prefetch-slots and --buffer have no effect: every"),
                        (["--pin", "off"], "--pin has"), (["--wire", "packed"], "--wire packed has"),
                        (["-n", "y", "--cfg", "1"], "--negative has"),
                        (["--lanes", "9"], "--lanes: there are only 2"),
                        (["--seed", "4294967296"], "of --seed the low 32")):
        result = shoal("plan", "-p", "x", "--device", "cpu", *args)
        notes = [line for line in result.out.splitlines() if line.startswith("note: ")]
        expect(len(notes) == 1 and notes[0].startswith("note: " + start), result, args)
        expect([f"note: {note}" for note in plan("--device", "cpu", *args)[0]["notes"]] == notes,
               notes, "--json")
    for args in (["--resident-blocks", "99"], ["--sampler", "x"], ["--device", "x"], ["--on", "x"]):
        result = shoal("plan", "-p", "x", *args)
        expect(result.err.startswith(f"shoal: error: {args[0]}: "), result, args)
    for args in (["--resident-blocks", "1001"], ["--block-size", "1"]):
        result = shoal("bench", "stream", *args)
        expect(result.err.startswith(f"shoal: error: {args[0]}: "), result, args)


# ---- generate ----


@case
def generate_writes_a_png_with_text(folder):
    path = os.path.join(folder, "apple.png")
    result = shoal("generate", "-p", "a red apple", "--seed", "41", "-o", path, *SMALL)
    expect(result.code == 0, result)
    expect(path in result.out and "41" in result.out and "peak" in result.out, result)
    with open(path, "rb") as file:
        data = file.read()
    expect(png_size(path) == (64, 64), png_size(path))
    texts = png_texts(data)
    expect(b"a red apple" in texts and b"41" in texts, texts)
    expect(os.listdir(folder) == ["apple.png"], os.listdir(folder))


@case
def a_single_step_reads_everything(folder):
    args = ["-p", "x", *SMALL, "--vram", "6MiB", "--resident-blocks", "2", "-o", "x.png"]
    for more in ([], ["--lanes", "1"], ["--ram", "16MiB"], ["--wire", "packed"]):
        result = shoal("generate", *args, *more, "--json", folder=folder)
        figures = json.loads(result.out)
        planned, report = figures["plan"], figures["report"]
        read = sum(phase["first_walk_bytes"] + (phase["walks"] - 1) * phase["disk_bytes"]
                   for phase in planned["phases"] if phase["phase"] == "steps")
        expect(report["step_read_bytes"] == planned["step_disk_bytes"] == read > 10 << 20, result)
        expect(planned["step_seconds"] == planned["first_step_seconds"], planned)
        result = shoal("generate", *args, *more, folder=folder)
        size = f"{read / (1 << 20):.2f} MiB"
        expect(f" {size} read from disk" in result.out, result)
        expect(f"device, {size} read\n" in result.out, result)
        expect("at best" not in result.out and "the first" not in result.out, result)
    result = shoal("plan", "-p", "x", *SMALL)
    expect("read from disk" in result.out and "after the first" not in result.out, result)


@case
def the_first_step_is_told_from_later_ones(folder):
    result = shoal("generate", "-p", "x", *SMALL, "--steps", "2", folder=folder)
    line = r"a step    the first [\d.]+ m?s, later ones [\d.]+ m?s at best; "
    expect(re.search(line, result.out), result)


@case
def generate_prints_lines_where_there_is_no_terminal(folder):
    result = shoal("generate", "-p", "x", *SMALL, "--steps", "3", folder=folder)
    expect(result.code == 0 and "\x1b" not in result.err + result.out, result)
    for step in (1, 2, 3):
        expect(result.err.count(f"step {step}/3") == 1, result)


@case
def generate_json_is_one_object(folder):
    result = shoal("generate", "-p", 'a "red"\tapple \u00e9', "--json", "--count", "2", "--vram",
                   "1GiB", "--seed", "5", "-n", "y", "--cfg", "1", *SMALL, folder=folder)
    expect(result.code == 0, result)
    figures = json.loads(result.out)
    expect(figures["prompt"] == 'a "red"\tapple \u00e9', figures)
    expect(figures["report"]["peak_vram_bytes"] == figures["plan"]["peak_vram_bytes"], figures)
    expect(figures["report"]["mean_step_seconds"] >= figures["report"]["step_seconds"] > 0, figures)
    expect(figures["report"]["driver_vram_bytes"] == figures["report"]["pinned_bytes"] == 0, figures)
    expect(len(figures["notes"]) == 1 and "--negative" in figures["notes"][0], figures)
    pictures = figures["pictures"]
    expect([picture["seed"] for picture in pictures] == [5, 6], pictures)
    expect(pictures[0]["latents_xxh3_128"] != pictures[1]["latents_xxh3_128"], pictures)
    expect([picture["path"] for picture in pictures] == ["shoal-0001.png", "shoal-0002.png"],
           pictures)
    expect(sorted(os.listdir(folder)) == ["shoal-0001.png", "shoal-0002.png"], what="files")


@case
def generate_names_files(folder):
    shoal("generate", "-p", "x", *SMALL, folder=folder)
    shoal("generate", "-p", "x", *SMALL, folder=folder)
    expect(sorted(os.listdir(folder)) == ["shoal-0001.png", "shoal-0002.png"],
           os.listdir(folder), "default names never replace a file")
    os.mkdir(os.path.join(folder, "sub"))
    result = shoal("generate", "-p", "x", "-o", "sub", *SMALL, folder=folder)
    expect(os.listdir(os.path.join(folder, "sub")) == ["shoal-0001.png"], result, "-o FOLDER")
    result = shoal("generate", "-p", "x", "-o", "sub/a.b.png", "--count", "2", *SMALL,
                   folder=folder)
    expect(sorted(os.listdir(os.path.join(folder, "sub"))) ==
           ["a.b-1.png", "a.b-2.png", "shoal-0001.png"], result, "--count")
    with open(os.path.join(folder, "old.png"), "wb") as file:
        file.write(OLD_PNG)
    result = shoal("generate", "-p", "x", "-o", "old.png", *SMALL, folder=folder)
    expect(png_size(os.path.join(folder, "old.png")) == (64, 64), result, "-o replaces a picture")


@case
def generate_replaces_pictures_only(folder):
    """Found by a hostile tester: a slip of the keyboard replaced the model that was read."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "w", encoding="utf-8") as file:
        file.write("weights")
    result = shoal("generate", "-p", "x", "-o", path, *SMALL)
    expect(result.code == 2 and "no PNG" in result.err and path in result.err, result)
    result = shoal("generate", "-p", "x", "--trace", path, *SMALL, folder=folder)
    expect(result.code == 2 and "no trace" in result.err, result)
    with open(path, encoding="utf-8") as file:
        expect(file.read() == "weights", what="the file was replaced")


@case
def numbered_names_replace_no_file_of_another_process(folder):
    runs = [subprocess.Popen([SHOAL, "generate", "-p", "x", "-o", ".", "--count", "8", "--steps",
                              "1", "--width", "64", "--height", "64", "--threads", "1", "--seed",
                              str(100 * i), "--json"], cwd=folder, env=environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for i in range(8)]
    paths, seeds = [], set()
    for run in runs:
        out, err = run.communicate(timeout=TIMEOUT)
        expect(run.returncode == 0, err)
        paths += [picture["path"] for picture in json.loads(out)["pictures"]]
    names = sorted(os.listdir(folder))
    expect(len(set(paths)) == len(names) == 64, names, "64 pictures, 64 files")
    expect(sorted(os.path.basename(path) for path in paths) == names, paths)
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            seeds.add(png_texts(file.read()))
    expect(len(seeds) == 64, len(seeds), "a picture is there twice")


@case
def generate_through_a_link_replaces_what_it_points_to(folder):
    os.mkdir(os.path.join(folder, "sub"))
    os.mkdir(os.path.join(folder, "links"))
    target, link = os.path.join(folder, "sub/old.png"), os.path.join(folder, "links/x.png")
    with open(target, "wb") as file:
        file.write(OLD_PNG)
    os.symlink("../sub/old.png", os.path.join(folder, "links/y.png"))
    os.symlink("y.png", link)
    result = shoal("generate", "-p", "x", "-o", "links/x.png", *SMALL, folder=folder)
    expect(result.code == 0, result)
    expect(os.readlink(link) == "y.png", result, "the link is gone")
    expect(not os.path.islink(target) and png_size(target) == (64, 64), result)
    expect(os.listdir(os.path.join(folder, "sub")) == ["old.png"], what="files beside the target")
    expect(sorted(os.listdir(os.path.join(folder, "links"))) == ["x.png", "y.png"],
           what="files beside the link")


@case
def generate_same_seed_same_picture(folder):
    files = []
    for name, args in (("a", []), ("b", ["--threads", "1"]), ("c", ["--seed", "7"])):
        result = shoal("generate", "-p", "x", "-o", name + ".png", *args, *SMALL, folder=folder)
        expect(result.code == 0, result)
        with open(os.path.join(folder, name + ".png"), "rb") as file:
            files.append(file.read())
    expect(files[0] == files[1], what="the number of threads changes the file")
    expect(files[0] != files[2], what="the seed does not change the file")
    first = shoal("generate", "-p", "x", "--seed", "random", "--json", *SMALL, folder=folder)
    second = shoal("generate", "-p", "x", "--seed", "random", "--json", *SMALL, folder=folder)
    seeds = [json.loads(result.out)["pictures"][0]["seed"] for result in (first, second)]
    expect(seeds[0] != seeds[1], seeds, "--seed random")


@case
def generate_through_pipes(folder):
    result = shoal("generate", "-p", "-", "-o", "-", *SMALL, folder=folder, stdin=b"a red apple\n",
                   text=False)
    expect(result.code == 0, result.err)
    expect(b"a red apple" in png_texts(result.out) and b"apple\n\n" not in png_texts(result.out))
    expect(os.listdir(folder) == [], os.listdir(folder))
    refused(shoal("generate", "-p", "-", stdin=b"a\0b"), 2, "--prompt", "zero byte")
    refused(shoal("generate", "-p", "-", stdin=b"a" * (1 << 21)), 2, "--prompt", "1 MiB")


@case
def the_way_to_standard_output_is_tried_before_anything_runs(folder):
    """Found by a hostile tester: a TMPDIR that is not there was found after the last step."""
    tmp = os.path.join(folder, "tmp")
    os.mkdir(tmp)
    for path, word in (("/nonexistent", "No such file"), ("/proc", "'/proc'"),
                       ("/dev/null", "Not a directory"), ("a" * 5000, "too long")):
        result = shoal("generate", "-p", "x", "-o", "-", "--steps", "1000", folder=folder,
                       env=environment(TMPDIR=path))
        refused(result, 2, "--output -", "TMPDIR", word)
        expect("shoal-" not in result.err, result, "a name that nobody gave")
    result = shoal("generate", "-p", "x", "-o", "-", *SMALL, env=environment(TMPDIR=tmp), text=False)
    expect(result.code == 0 and png_chunks(result.out), result)
    expect(os.listdir(tmp) == [], os.listdir(tmp))
    result = shoal("generate", "-p", "x", "-o", "-", *SMALL, env=environment(TMPDIR=tmp),
                   before=small_files_only)
    refused(result, 1, "--output -", "TMPDIR", tmp)
    expect(os.listdir(tmp) == [], os.listdir(tmp))


@case
def control_characters_do_not_reach_the_terminal(folder):
    odd = "a\nb\x1b[31m\x7f\u009b31m\u00e9"
    result = shoal("generate", "-p", odd, "-o", odd + ".png", *SMALL, folder=folder)
    expect(result.code == 0, result)
    expect(not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.out + result.err), result)
    expect("picture   a?b?[31m??31m\u00e9.png (" in result.out, result)
    result = shoal("generate", "-p", odd, "-o", odd + ".png", "--json", *SMALL, folder=folder)
    expect(json.loads(result.out)["pictures"][0]["path"] == odd + ".png", result)
    expect(json.loads(result.out)["prompt"] == odd, result)
    expect(not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.out), result)
    result = shoal("generate", "-p", "x", "-o", b"\x9b31m.png", *SMALL, folder=folder)
    expect(result.code == 0 and "picture   ?31m.png (" in result.out, result)
    result = shoal("verify", "-p", odd, "--vram", "1GiB", *SMALL, folder=folder)
    expect(result.code == 0 and "'a?b?[31m??31m\u00e9'" in result.out, result)
    expect(not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.out + result.err), result)


@case
def prompts_that_are_odd(folder):
    for prompt in ("", " ", "\U0001f34e", "x" * 5000, "-", "%s%n"):
        args = ["--prompt=" + prompt] if prompt == "-" else ["-p", prompt]
        result = shoal("plan", *args, stdin=b"")
        expect(result.code in (0, 1, 2), result, repr(prompt))
    result = subprocess.run([SHOAL, "plan", "-p", b"\xff\xfe"], capture_output=True, check=False,
                            timeout=TIMEOUT)
    expect(result.returncode in (0, 1, 2), result)


@case
def parts_given_one_by_one(folder):
    mini = os.path.join(SOURCE, "models/shoal-mini")
    parts = ["--dit", os.path.join(mini, "transformer/diffusion_pytorch_model.safetensors"),
             "--text-encoder", os.path.join(mini, "text_encoder/model.safetensors"),
             "--vae", os.path.join(mini, "vae"), "--tokenizer",
             os.path.join(mini, "tokenizer/tokenizer.json")]
    same = ["generate", "-p", "a red apple", "--json", "--cfg", "2", "--shift", "2", *SMALL]
    pictures = []
    folders = [*parts[:3], os.path.join(mini, "text_encoder"), *parts[4:6]]
    for args in ([], ["-m", mini], parts, folders, ["-m", mini, *parts[4:]],
                 ["-m", mini, *parts[:2]]):
        result = shoal(*same, *args, folder=folder)
        expect(result.code == 0, result, args)
        pictures.append(json.loads(result.out)["pictures"][0]["picture_xxh3_128"])
    expect(len(set(pictures)) == 1, pictures)


# ---- output that cannot be written ----


@case
def output_is_checked_before_anything_runs(folder):
    path = os.path.join(folder, "file")
    with open(path, "w", encoding="utf-8"):
        pass
    for target, words in (
            (os.path.join(folder, "no", "x.png"), ["no", "make it first"]),
            (os.path.join(path, "x.png"), ["file"]),
            ("/dev/full", ["/dev/full", "under /dev", "-o -"]),
            ("/dev/null", ["/dev/null", "under /dev", "-o -"]),
            ("/dev/stdout", ["/dev/stdout", "under /dev", "-o -"]),
            ("/proc/self/fd/1", ["/proc/self/fd/1", "under /proc", "-o -"]),
            ("/dev/", ["/dev/", "under /dev", "-o -"]),
            ("", ["empty"]),
            ("a" * 250 + ".png", ["too long"]),
            ("x.jpg", ["x.png"])):
        result = shoal("generate", "-p", "x", "-o", target, "--steps", "1000", folder=folder)
        refused(result, 2, "--output", *words)
    expect(os.listdir(folder) == ["file"], os.listdir(folder))


@case
def links_that_lead_nowhere_or_to_a_device_are_refused(folder):
    links = {"nothing.png": "none.png", "far.png": "no/such/x.png", "far2.png": "/none/x.png",
             "loop.png": "loop2.png", "loop2.png": "loop.png", "null.png": "/dev/null",
             "stdout.png": "/dev/stdout", "fd.png": "/proc/self/fd/1", "hop.png": "stdout.png",
             "dev": "/dev"}
    for name, target in links.items():
        os.symlink(target, os.path.join(folder, name))
    before = sorted(os.listdir(folder))
    for name, word in (("nothing.png", "link to nothing"), ("far.png", "link to nothing"),
                       ("far2.png", "link to nothing"), ("loop.png", "back to itself"),
                       ("null.png", "under /dev"), ("stdout.png", "under /dev"),
                       ("fd.png", "under /proc"), ("hop.png", "under /dev"), ("dev", "under /dev"),
                       ("dev/x.png", "under /dev")):
        result = shoal("generate", "-p", "x", "-o", name, "--steps", "1000", folder=folder)
        refused(result, 2, "--output", name, word)
        # With a regular file as standard output, the link's real path is that file's.
        with tempfile.TemporaryFile() as out:
            result = shoal("generate", "-p", "x", "-o", name, *SMALL, folder=folder, stdout=out)
            expect(os.fstat(out.fileno()).st_size == 0, result, name)
        refused(result, 2, "--output", name, word)
    expect(sorted(os.listdir(folder)) == before, os.listdir(folder))
    for name, target in links.items():
        expect(os.readlink(os.path.join(folder, name)) == target, name)


@case
def a_link_into_a_folder_without_write_permission(folder):
    if os.geteuid() == 0:
        return "SKIP root may write anywhere"
    sub = os.path.join(folder, "sub")
    os.mkdir(sub)
    with open(os.path.join(sub, "x.png"), "w", encoding="utf-8"):
        pass
    os.symlink("sub/x.png", os.path.join(folder, "x.png"))
    os.chmod(sub, 0o555)
    result = shoal("generate", "-p", "x", "-o", "x.png", "--steps", "1000", folder=folder)
    os.chmod(sub, 0o755)
    refused(result, 2, "--output", "sub", "written to")
    return None


@case
def a_folder_without_write_permission(folder):
    if os.geteuid() == 0:
        return "SKIP root may write anywhere"
    os.chmod(folder, 0o555)
    result = shoal("generate", "-p", "x", "--steps", "1000", folder=folder)
    os.chmod(folder, 0o755)
    refused(result, 2, "--output", "written to")
    return None


@case
def a_full_disk_leaves_no_file(folder):
    result = shoal("generate", "-p", "x", "-o", "x.png", *SMALL, folder=folder,
                   before=small_files_only)
    expect(result.code == 1 and "x.png" in result.err, result)
    expect(os.listdir(folder) == [], os.listdir(folder))
    result = shoal("generate", "-p", "x", *SMALL, folder=folder, before=small_files_only)
    expect(result.code == 1 and "shoal-0001.png" in result.err, result)
    expect(os.listdir(folder) == [], os.listdir(folder), "a number is still taken")


@case
def a_full_disk_keeps_the_old_file(folder):
    path = os.path.join(folder, "x.png")
    with open(path, "wb") as file:
        file.write(OLD_PNG)
    result = shoal("generate", "-p", "x", "-o", path, *SMALL, before=small_files_only)
    expect(result.code == 1 and "x.png" in result.err, result)
    with open(path, "rb") as file:
        expect(file.read() == OLD_PNG, what="the old file is gone")
    expect(os.listdir(folder) == ["x.png"], os.listdir(folder))


@case
def standard_output_that_cannot_be_written(folder):
    for args in (["plan", "-p", "x"], ["devices"], ["inspect", "mini"], ["generate", "--help"]):
        with open("/dev/full", "wb") as full:
            result = shoal(*args, stdout=full)
        expect(result.code == 1 and "standard output" in result.err, result, args)
        result = shoal(*args, before=lambda: os.close(1))
        expect(result.code == 1 and "standard output" in result.err, result, args)
    result = shoal("generate", "-p", "x", "-o", "x.png", *SMALL, folder=folder,
                   before=lambda: (os.close(0), os.close(1), os.close(2)))
    expect(result.code == 1, result)
    expect(png_size(os.path.join(folder, "x.png")) == (64, 64), what="the picture is whole")


@case
def pipes_closed_early(folder):
    for args in (["plan", "-p", "x"], ["devices"], ["inspect", "mini"], ["--help"],
                 ["generate", "-p", "x", "-o", "x.png", *SMALL]):
        reader, writer = os.pipe()
        os.close(reader)
        result = shoal(*args, folder=folder, stdout=writer)
        os.close(writer)
        expect(result.code == 1 and "error" not in result.err, result, args)
    expect(png_size(os.path.join(folder, "x.png")) == (64, 64), what="the picture is there")
    reader, writer = os.pipe()
    os.close(reader)
    result = shoal("generate", "-p", "x", "-o", "y.png", *SMALL, folder=folder, stderr=writer)
    os.close(writer)
    expect(result.code == 0, result, "standard error closed early")
    expect(png_size(os.path.join(folder, "y.png")) == (64, 64), what="the picture is there")


# ---- signals and terminals ----


def start_long_run(folder, *args):
    run = subprocess.Popen([SHOAL, *args, "-p", "x", "--width", "128", "--height", "128",
                            "--steps", "1000"], cwd=folder,
                           env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           preexec_fn=default_signals)
    return run


def wait_for(stream, word):
    """Reads up to the line that holds `word`."""
    end = time.monotonic() + TIMEOUT
    seen = b""
    while word not in seen:
        ready, _, _ = select.select([stream], [], [], max(0, end - time.monotonic()))
        piece = os.read(stream.fileno(), 4096) if ready else b""
        expect(piece, seen, f"no {word!r}")
        seen += piece


def interrupted(folder, number, code):
    run = start_long_run(folder, "generate", "-o", "x.png")
    wait_for(run.stderr, b"step 1/")
    start = time.monotonic()
    run.send_signal(number)
    _, err = run.communicate(timeout=TIMEOUT)
    err = err.decode()
    expect(run.returncode == code, err, f"exit code {run.returncode}, not {code}")
    expect("interrupted" in err, err)
    expect(time.monotonic() - start < 20, what="it took too long to stop")
    expect(os.listdir(folder) == [], os.listdir(folder))


@case
def ctrl_c_stops_and_leaves_no_file(folder):
    interrupted(folder, signal.SIGINT, 130)


@case
def sigterm_stops_and_leaves_no_file(folder):
    interrupted(folder, signal.SIGTERM, 143)


@case
def ctrl_c_stops_verify(folder):
    run = start_long_run(folder, "verify")
    wait_for(run.stdout, b"picture")
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=TIMEOUT)
    expect(run.returncode == 130, run.returncode)


@case
def ctrl_c_ends_planning_at_once(folder):
    for command in ("plan", "generate", "verify"):
        run = subprocess.Popen([SHOAL, command, "-p", "x", "--width", "16384", "--height", "16384",
                                "--count", "64", "--cfg", "3", "--json"], cwd=folder,
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=default_signals)
        end = time.monotonic() + TIMEOUT
        while run.poll() is None and time.monotonic() < end:
            with open(f"/proc/{run.pid}/status", encoding="ascii") as file:
                caught = int(re.search(r"SigCgt:\s*(\w+)", file.read()).group(1), 16)
            if caught & 1 << (signal.SIGINT - 1):
                break
            time.sleep(0.001)
        time.sleep(0.1)
        start = time.monotonic()
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=TIMEOUT)
        expect(run.returncode == 130, err, f"{command}: exit code {run.returncode}")
        expect(time.monotonic() - start < 2, what=f"{command}: it took too long to stop")
        expect(out == b"" and err.endswith(b"interrupted\n"), err)
    expect(os.listdir(folder) == [], os.listdir(folder))


@case
def a_second_ctrl_c_ends_at_once(folder):
    run = start_long_run(folder, "generate", "-o", "x.png")
    wait_for(run.stderr, b"text: ")
    run.send_signal(signal.SIGINT)
    time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=TIMEOUT)
    expect(run.returncode in (-signal.SIGINT, 130), run.returncode)
    expect("x.png" not in os.listdir(folder), os.listdir(folder))


def on_terminal(*args, folder, env):
    """Runs with standard output and error on a terminal; returns the code and what it showed."""
    main, side = pty.openpty()
    run = subprocess.Popen([SHOAL, *args], cwd=folder, env=env, stdin=side, stdout=side,
                           stderr=side, preexec_fn=default_signals)
    os.close(side)
    shown = b""
    while True:
        try:
            piece = os.read(main, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(main)
    return run.wait(timeout=TIMEOUT), shown.decode()


@case
def a_terminal_gets_a_progress_bar(folder):
    args = ["generate", "-p", "x", *SMALL, "--steps", "4"]
    code, shown = on_terminal(*args, folder=folder, env=environment())
    expect(code == 0 and "\r\x1b[K" in shown and "steps" in shown, shown)
    expect("\x1b[36m" in shown, shown, "no colour on a terminal")
    code, shown = on_terminal(*args, folder=folder, env=environment(NO_COLOR="1"))
    expect(code == 0 and not re.search(r"\x1b\[[0-9;]*m", shown), shown, "NO_COLOR")
    dumb = environment()
    dumb["TERM"] = "dumb"
    code, shown = on_terminal(*args, folder=folder, env=dumb)
    expect(code == 0 and "\x1b" not in shown and "step 4/4" in shown, shown, "TERM=dumb")
    code, shown = on_terminal("generate", "-p", "x", "-o", "-", folder=folder, env=environment())
    expect(code == 2 and "terminal" in shown, shown, "a picture to a terminal")


if __name__ == "__main__":
    main()
