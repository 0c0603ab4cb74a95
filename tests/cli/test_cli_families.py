#!/usr/bin/env python3
"""Tests of families beside Z-Image, as tools/make_checkpoint makes them small: whole runs, in little memory too.

    python3 tests/cli/test_cli_families.py path/to/shoal [part of a case's name] with MAKE_CHECKPOINT in the environment
"""

import glob
import json
import os
import shutil
import subprocess
import sys

from harness import SOURCE, case, expect, main, refused, shoal

MAKE = os.environ["MAKE_CHECKPOINT"]
MAKE_LORA = os.path.join(SOURCE, "tools", "make_lora.py")
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
    prompt = [] if "-p" in args else ["-p", "a cat"]
    result = shoal("generate", "-m", model, *prompt, "--json", *SIZE, *args,
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
def adapters_of_every_matrix_change_the_picture_and_no_plan_a_bit(folder):
    lora = os.path.join(folder, "lora.safetensors")
    for dtype in ("bf16", "fp8"):
        models = os.path.join(folder, dtype)
        os.mkdir(models)
        for family, tokenizers in TOKENIZERS.items():
            what, model = f"{family}, {dtype}", make(models, family, "--dtype", dtype)
            dit, = glob.glob(os.path.join(model, "diffusion_models", "*"))
            subprocess.run([sys.executable, MAKE_LORA, dit, lora, "--rank", "4"], check=True)
            result = shoal("verify", "-m", model, "-p", "a cat", "--lora", lora, *tokenizers, *SIZE)
            expect(result.code == 0 and "Same bytes" in result.out, result, what)
            expect("left out" not in result.out + result.err, result)
            want = paint(folder, model, *tokenizers, "--lora", lora)
            expect(want != paint(folder, model, *tokenizers), what=f"{what}: the LoRA does nothing")
            baked = ("--lora", lora, "--host-format", "compute", "--resident-blocks", "0")
            expect(paint(folder, model, *tokenizers, *baked) == want, what=f"{what}, baked")


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
        # Flow matching begins with noise alone when there is all of it; EDM adds it to the picture.
        result = shoal("plan", "-m", model, "-p", "a cat", *tokenizers, "--init", begin, "--strength", "1")
        expect(("--init has no effect" in result.out) == (family != "cosmos-2b"), result, family)


@case
def layouts_paint_the_same(folder):
    for family, tokenizers in TOKENIZERS.items():
        single = make(folder, family)
        want = paint(folder, single, *tokenizers)
        model = os.path.join(folder, family + "-diffusers")
        subprocess.run([MAKE, "--family", family, "--scale", "small", "--shard", "1MB", model],
                       check=True, capture_output=True)
        expect(paint(folder, model, *tokenizers) == want, what=family)
        # An adapter's names may be those of the other layout.
        lora, pictures = os.path.join(folder, "lora.safetensors"), set()
        dit, = glob.glob(os.path.join(single, "diffusion_models", "*"))
        subprocess.run([sys.executable, MAKE_LORA, dit, lora, "--rank", "4"], check=True)
        for one in (single, model):
            result = shoal("plan", "-m", one, "-p", "a cat", *tokenizers, *SIZE, "--lora", lora)
            expect(result.code == 0 and "left out" not in result.out, result, family)
            pictures.add(paint(folder, one, *tokenizers, "--lora", lora))
        expect(len(pictures) == 1 and want not in pictures, pictures, family)


@case
def inspect_finds_tokenizers_as_runs_do(folder):
    def missing(model):
        return json.loads(shoal("inspect", model, "--json").out)["missing"]

    def put(model, path, source):
        os.makedirs(os.path.dirname(os.path.join(model, path)), exist_ok=True)
        shutil.copy(source, os.path.join(model, path))

    cosmos, anima = make(folder, "cosmos-2b"), make(folder, "anima")
    expect(len(missing(cosmos)) == 1 and "tokenizer" in missing(cosmos)[0], missing(cosmos))
    put(cosmos, "tokenizer/spiece.model", T5)
    expect(missing(cosmos) == [], missing(cosmos))
    expect([name.split(" (")[0] for name in missing(anima)] == ["tokenizer", "second tokenizer"], missing(anima))
    put(anima, "tokenizer.json", BYTES[1])
    expect(len(missing(anima)) == 1 and "t5_tokenizer" in missing(anima)[0], missing(anima))
    put(anima, "tokenizer_2/spiece.model", T5)
    expect(missing(anima) == [], missing(anima))
    paint(folder, cosmos)
    paint(folder, anima)


@case
def animas_adapter_has_a_folder_of_its_own(folder):
    single, model = make(folder, "anima"), os.path.join(folder, "model")
    tokenizers, adapter = TOKENIZERS["anima"], os.path.join(model, "text_conditioner")
    want = paint(folder, single, *tokenizers)
    subprocess.run([MAKE, "--family", "anima", "--scale", "small", model], check=True, capture_output=True)

    seen = shoal("inspect", model)
    expect(seen.code == 0 and "Anima" in seen.out and adapter in seen.out, seen)
    dit = json.loads(shoal("inspect", model, "--json").out)["checkpoints"][0]
    expect(dit["parts"][0]["family"] == "anima" and dit["beside"].startswith(adapter), dit)
    expect(shoal("verify", "-m", model, "-p", "a cat", *tokenizers, *SIZE).code == 0)
    given = ("--dit", os.path.join(model, "transformer"))
    expect(paint(folder, single, *tokenizers, *given) == want)

    # A file that is named is taken as it is.
    file = os.path.join(single, "diffusion_models", "anima.safetensors")
    expect(paint(folder, model, *tokenizers, "--dit", file) == want)
    file = os.path.join(model, "transformer", "diffusion_pytorch_model.safetensors")
    cosmos = ("plan", "-m", model, "-p", "a cat", "--tokenizer", T5, *SIZE)
    refused(shoal(*cosmos, "--dit", file), 2, "qwen3", "t5")

    packed = os.path.join(folder, "packed")
    expect(shoal("convert", model, packed).code == 0)
    expect(sorted(os.listdir(os.path.join(packed, "text_conditioner"))) == sorted(os.listdir(adapter)))
    expect(paint(folder, packed, *tokenizers) == want)
    expect("packed" in shoal("inspect", os.path.join(packed, "text_conditioner")).out)
    back = os.path.join(folder, "back")
    expect(shoal("convert", packed, back, "--wire", "raw").code == 0)
    expect(paint(folder, back, *tokenizers) == want)

    cache = os.path.join(folder, "cache")
    for _ in range(2):
        expect(paint(folder, model, *tokenizers, "--wire", "packed", "--disk-cache", cache) == want)
    entries = json.loads(shoal("cache", cache, "--json").out)["entries"]
    expect(len(entries) == 2 and all(entry["state"] == "current" for entry in entries), entries)

    os.rename(adapter, adapter + ".away")
    states = sorted(entry["state"] for entry in json.loads(shoal("cache", cache, "--json").out)["entries"])
    expect(states == ["current", "original gone"], states)
    refused(shoal(*cosmos), 2, "qwen3", "t5")
    os.mkdir(adapter)
    refused(shoal(*cosmos), 1, adapter, "no checkpoint")
    os.link(file, os.path.join(adapter, "model.safetensors"))
    refused(shoal(*cosmos), 1, adapter, "no Anima")


@case
def what_is_missing_or_has_no_effect_is_said(folder):
    models = {family: make(folder, family) for family in TOKENIZERS}
    for family, code, args, words in (
            ("anima", 1, BYTES, ("second tokenizer", "--tokenizer-2")),
            ("anima", 2, (*BYTES, "--tokenizer-2", BYTES[1]), ("--tokenizer-2",)),
            ("qwen-image", 2, (*BYTES, "--tokenizer-2", T5), ("--tokenizer-2", "one tokenizer")),
            ("qwen-image", 1, (), ("tokenizer.json", "--tokenizer")),
            ("qwen-image", 2, ("--tokenizer", T5), ("<|im_start|>", "--tokenizer")),
            ("anima", 2, ("--tokenizer", T5, "--tokenizer-2", T5), ("<|endoftext|>", "--tokenizer")),
            ("qwen-image", 2, (*BYTES, "--width", "16384", "--height", "16384"), ("--width", "--shift")),
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
