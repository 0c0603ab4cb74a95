#!/usr/bin/env python3
"""Tests of families beside Z-Image, as tools/make_checkpoint makes them small: whole runs, in little memory too.

    python3 tests/cli/test_cli_families.py path/to/shoal [part of a case's name] with MAKE_CHECKPOINT in the environment
"""

import json
import os
import subprocess

from harness import SOURCE, case, expect, main, refused, shoal

MAKE = os.environ["MAKE_CHECKPOINT"]
GOLDEN = os.path.join(SOURCE, "tests", "golden")
BYTES = ("--tokenizer", os.path.join(GOLDEN, "synth_tokenizer.json"))
T5 = os.path.join(GOLDEN, "unigram.model")
TOKENIZERS = {"qwen-image": BYTES, "cosmos-2b": ("--tokenizer", T5), "anima": (*BYTES, "--tokenizer-2", T5)}
SIZE = ("--width", "64", "--height", "64", "--steps", "2", "--device", "cpu")


def make(folder, family, *options):
    to = os.path.join(folder, family)
    subprocess.run([MAKE, "--family", family, "--scale", "small", "--layout", "comfyui", *options, to],
                   check=True, capture_output=True)
    return to


def paint(folder, model, *args):
    """The picture's hash."""
    result = shoal("generate", "-m", model, "-p", "a cat", "--json", *SIZE, *args,
                   "-o", os.path.join(folder, "picture.png"))
    expect(result.code == 0, result)
    return json.loads(result.out)["pictures"][0]["picture_xxh3_128"]


def least(model, *args):
    result = shoal("plan", "-m", model, "-p", "a cat", "--json", *SIZE, *args)
    expect(result.code == 0, result)
    return json.loads(result.out)["least_vram_bytes"]


@case
def no_plan_changes_a_bit(folder):
    for family, tokenizers in TOKENIZERS.items():
        result = shoal("verify", "-m", make(folder, family), "-p", "a cat", *tokenizers, *SIZE)
        expect(result.code == 0 and "Same bytes" in result.out, result, family)


@case
def the_least_memory_works_and_paints_the_same(folder):
    for family, tokenizers in TOKENIZERS.items():
        model = make(folder, family, "--dtype", "fp8")
        want = paint(folder, model, *tokenizers)
        vram = str(least(model, *tokenizers))
        expect(paint(folder, model, *tokenizers, "--vram", vram) == want, what=family)
        wide = paint(folder, model, *tokenizers, "--host-format", "compute")
        expect(wide == want, what=f"{family}, widened")


@case
def prompts_samplers_and_pictures_to_begin_with_make_a_difference(folder):
    for family, tokenizers in TOKENIZERS.items():
        model, seen = make(folder, family), set()
        for more in ((), ("-p", "two dogs"), ("-p", ""), ("--negative", "blue"), ("--cfg", "1"),
                     ("--sampler", "dpmpp_2m", "--schedule", "simple"), ("--sampler", "euler_ancestral"),
                     ("--seed", "5")):
            seen.add(paint(folder, model, *tokenizers, *more))
        begin = os.path.join(folder, "begin.png")
        os.rename(os.path.join(folder, "picture.png"), begin)
        seen.add(paint(folder, model, *tokenizers, "--init", begin, "--strength", "0.5"))
        expect(len(seen) == 9, seen, family)


@case
def what_is_missing_or_has_no_effect_is_said(folder):
    models = {family: make(folder, family) for family in TOKENIZERS}
    for family, code, args, words in (
            ("anima", 1, BYTES, ("second tokenizer", "--tokenizer-2")),
            ("anima", 2, ("--tokenizer", T5, "--tokenizer-2", BYTES[1]), ("--tokenizer-2",)),
            ("qwen-image", 2, (*BYTES, "--tokenizer-2", T5), ("--tokenizer-2", "one tokenizer")),
            ("qwen-image", 1, (), ("tokenizer.json", "--tokenizer")),
            ("cosmos-2b", 2, BYTES, ("T5", "--tokenizer")),
            ("cosmos-2b", 2, ("--tokenizer", T5, "--shift", "3"), ("--shift",))):
        refused(shoal("plan", "-m", models[family], "-p", "a cat", *SIZE, *args), code, *words)
    other = os.path.join(models["anima"], "text_encoders", "qwen_3_06b_base.safetensors")
    refused(shoal("plan", "-m", models["qwen-image"], "-p", "a cat", "--text-encoder", other, *BYTES, *SIZE), 2,
            "qwen3", "qwen2.5-vl")
    plain = shoal("plan", "-m", models["qwen-image"], "-p", "a cat", *BYTES, *SIZE)
    expect("by the size" in plain.out, plain)
    given = shoal("plan", "-m", models["qwen-image"], "-p", "a cat", "--shift", "2", *BYTES, *SIZE)
    expect("shift 2," in given.out, given)


if __name__ == "__main__":
    main()
