#!/usr/bin/env python3
"""Tests of several prompts in one run: each picture is what its prompt and seed give alone.

    python3 tests/cli/test_cli_prompts.py path/to/shoal [part of a case's name]
"""

import json
import os
import re

import lora_files
from harness import SMALL, case, expect, main, png_texts, refused, shoal

PROMPTS = ("a red apple", "two blue dragons over a long river, at night")
BOTH = ["-p", PROMPTS[0], "-p", PROMPTS[1]]
GUIDED = [*SMALL[:4], "--steps", "2", "--cfg", "3", "--negative", "blurred", "--seed", "5"]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def paint(folder, *args):
    """The files' bytes, one picture after the other, and what was said."""
    result = shoal("generate", "--json", *args, "-o", "x.png", folder=folder)
    expect(result.code == 0, result)
    said = json.loads(result.out)
    return [read(os.path.join(folder, picture["path"])) for picture in said["pictures"]], said


def alone(folder, *args):
    """Two pictures of each prompt, in runs of their own."""
    return [picture for prompt in PROMPTS
            for picture in paint(folder, "-p", prompt, "--count", "2", *args)[0]]


@case
def pictures_are_those_of_runs_of_their_own(folder):
    want = alone(folder, *GUIDED)
    expect(len(set(want)) == 4, what="four pictures")
    least = json.loads(shoal("plan", *BOTH, "--count", "2", *GUIDED, "--json").out)["least_vram_bytes"]
    for more in ((), ("--lanes", "1"), ("--lanes", "3"), ("--lanes", "8", "--resident-blocks", "0"),
                 ("--vram", str(least)), ("--vram", "6MiB", "--ram", "20MiB", "--threads", "1")):
        got, said = paint(folder, *BOTH, "--count", "2", *GUIDED, *more)
        expect(got == want, said["plan"]["lanes"], more)
        expect(said["report"]["peak_vram_bytes"] == said["plan"]["peak_vram_bytes"], said["report"], more)


@case
def noise_adapters_and_beginnings_are_each_picture_s(folder):
    lora = os.path.join(folder, "a.safetensors")
    lora_files.kohya(lora)
    begin = os.path.join(folder, "begin.png")
    expect(shoal("generate", "-p", "x", *SMALL, "-o", begin).code == 0)
    args = ["--steps", "3", "--seed", "7", "--sampler", "euler_ancestral", "--lora", lora, "--init", begin,
            "--cfg", "2"]
    want = alone(folder, *args)
    for more in ((), ("--lanes", "3", "--vram", "6MiB")):
        expect(paint(folder, *BOTH, "--count", "2", *args, *more)[0] == want, what=more)


@case
def each_prompt_is_encoded_once(folder):
    def operations(*args):
        result = shoal("plan", *args, *GUIDED, "--json")
        expect(result.code == 0, result)
        said = json.loads(result.out)
        phases = {phase["phase"]: phase["operations"] for phase in said["phases"]}
        return said, [phases[name] for name in ("text", "context", "steps")]

    one, once = operations("-p", PROMPTS[0])
    two, twice = operations("-p", PROMPTS[0], "-p", PROMPTS[0], "--count", "2")
    expect((one["prompts"], one["pictures"], one["all_lanes"]) == (1, 1, 2), one)
    expect((two["prompts"], two["pictures"], two["count"], two["all_lanes"]) == (2, 4, 2, 8), two)
    expect(twice[:2] == once[:2] and twice[2] == 4 * once[2], (once, twice))
    pictures, _ = paint(folder, "-p", PROMPTS[0], *BOTH, *SMALL)
    expect(pictures[0] == pictures[1] != pictures[2], what="the same prompt twice")


@case
def pictures_tell_their_own_prompt(folder):
    result = shoal("generate", *BOTH, "--count", "2", *SMALL, "-o", "y.png", folder=folder)
    expect(result.code == 0 and "4 pictures of 2 prompts, cfg" in result.out, result)
    lines = re.findall(r"^picture   (\S+) \(64 x 64, seed (\d), '(.*)'\)$", result.out, re.M)
    want = [(f"y-{i + 1}.png", str(i % 2), PROMPTS[i // 2]) for i in range(4)]
    expect(lines == want, result)
    for name, _, prompt in want:
        expect(b"parameters\0" + prompt.encode() + b"\n" in png_texts(read(os.path.join(folder, name))), name)
    _, said = paint(folder, *BOTH, *SMALL)
    expect([picture["prompt"] for picture in said["pictures"]] == said["prompts"] == list(PROMPTS), said)
    result = shoal("generate", "-p", "x", "-p", "-", *SMALL, "--json", "-o", ".", stdin=b"from here\n",
                   text=False, folder=folder)
    expect([picture["prompt"] for picture in json.loads(result.out)["pictures"]] == ["x", "from here"], result)


@case
def no_plan_changes_a_bit(folder):
    result = shoal("verify", *BOTH, "--count", "2", *SMALL, "--lanes", "3", folder=folder)
    expect(result.code == 0 and "Same bytes" in result.out and f"'{PROMPTS[0]}', '{PROMPTS[1]}'" in result.out, result)
    said = json.loads(shoal("verify", *BOTH, *SMALL, "--json").out)
    expect(said["prompts"] == list(PROMPTS), said)


@case
def what_is_wrong_is_said(folder):
    for args, words in ((["-p", "x"] * 65, ["--prompt", "64 are the most"]),
                        ([*BOTH, "--count", "33"], ["--count 33 of 2 prompts", "give 32"]),
                        (["-p", "-", "-p", "-"], ["--prompt -", "given twice"]),
                        ([*BOTH, "-o", "-"], ["--output -", "one picture"])):
        refused(shoal("generate", *args, *SMALL, stdin=b"", folder=folder), 2, *words)
    refused(shoal("generate", "-p", "x", "-p", b"\xff", *SMALL, folder=folder), 2, "prompt 2: ")
    long = " ".join(["apple"] * 600)
    result = shoal("plan", "-p", "x", "-p", long, *SMALL)
    expect(result.code == 0 and "prompt 2 is longer than" in result.out, result)


if __name__ == "__main__":
    main()
