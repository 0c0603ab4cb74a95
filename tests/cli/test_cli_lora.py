#!/usr/bin/env python3
"""Tests of adapters: what --lora takes and refuses, and that no plan changes a bit of what is made with it.

    python3 tests/cli/test_cli_lora.py path/to/shoal [part of a case's name]
"""

import json
import os
import re
import shutil
import subprocess
import sys

import lora_files
from harness import SMALL, SOURCE, case, expect, main, png_texts, refused, shoal

MINI = os.path.join(SOURCE, "models", "shoal-mini")
MAKE = os.path.join(SOURCE, "tools", "make_fp8.py")
DIT = os.path.join("transformer", "diffusion_pytorch_model.safetensors")
TEXT = os.path.join("text_encoder", "model.safetensors")


def adapters(folder):
    """--lora options for three made-up files, of every kind."""
    paths = [os.path.join(folder, name) for name in ("a.safetensors", "b:2.safetensors", "c.safetensors")]
    for make, path in zip((lora_files.kohya, lora_files.diffusers, lora_files.lokr), paths):
        make(path)
    return ["--lora", paths[0] + ":0.7", "--lora", paths[1], "--lora", paths[2] + ":-1"]


def fp8(folder):
    to = os.path.join(folder, "fp8")
    shutil.copytree(MINI, to)
    for file in (DIT, TEXT):
        subprocess.run([sys.executable, MAKE, os.path.join(MINI, file), os.path.join(to, file)], check=True)
    return to


def q8(folder):
    """The DiT in Q8_0."""
    to = os.path.join(folder, "q8")
    shutil.copytree(MINI, to)
    os.remove(os.path.join(to, DIT))
    lora_files.to_gguf(os.path.join(MINI, DIT), os.path.join(to, "transformer", "dit.gguf"), "lumina2")
    return to


def paint(folder, *args):
    """The picture's hash."""
    result = shoal("generate", "-p", "a cat", "--json", *SMALL, *args, "-o", os.path.join(folder, "picture.png"))
    expect(result.code == 0, result)
    return json.loads(result.out)["pictures"][0]["picture_xxh3_128"]


def verified(result):
    """The hash that all plans of `verify` gave."""
    expect(result.code == 0 and "Same bytes" in result.out, result)
    hashes = set(re.findall(r"^\S.* ([0-9a-f]{8})$", result.out, re.M))
    expect(len(hashes) == 1, result)
    return hashes.pop()


@case
def no_plan_changes_a_bit_of_any_type(folder):
    loras, pictures = adapters(folder), {}
    for name, model in (("bf16", MINI), ("fp8", fp8(folder)), ("q8", q8(folder))):
        result = shoal("verify", "-m", model, "-p", "a cat", "--vram", "6MiB", *SMALL[:4], *loras)
        pictures[name] = verified(result)
        # Resident, in RAM and on disk; patched on the device at each use, and baked on the host.
        for plan in ("unlimited", "half resident", "all on disk", "least of both", "wide", "wide, least", "wide, half"):
            expect(re.search(rf"^{plan} +\d.* MiB", result.out, re.M), result, f"{name}: {plan}")
    expect(len(set(pictures.values())) == 3, pictures)


@case
def packed_files_give_the_same_picture(folder):
    loras = adapters(folder)
    for name, model in (("bf16", MINI), ("fp8", fp8(folder))):
        packed = os.path.join(folder, name + "-packed")
        expect(shoal("convert", model, packed).code == 0)
        want = paint(folder, "-m", model, *loras)
        expect(paint(folder, "-m", packed, *loras) == want, what=name)
        result = shoal("verify", "-m", packed, "-p", "a cat", "--vram", "6MiB", *SMALL[:4], *loras)
        verified(result)


@case
def layouts_and_orders(folder):
    loras = adapters(folder)
    single = os.path.join(folder, "single.safetensors")
    lora_files.to_single_file(os.path.join(MINI, DIT), single)
    want = paint(folder, *loras)
    expect(paint(folder, "--dit", single, "-m", MINI, *loras) == want, what="q, k and v in one matrix")
    expect(paint(folder) != want and paint(folder, *loras[:2]) != want)
    # All of it in, and out again, but for roundings: not the same bits.
    expect(paint(folder, "--lora", loras[1].replace(":0.7", ":0")) == paint(folder))


@case
def what_is_left_out_is_said(folder):
    loras = adapters(folder)
    note = "1 of its 3 modules is none of the model's and left out: lora_unet_of_another_model"
    result = shoal("plan", *loras, *SMALL)
    expect(result.code == 0 and note in result.out and "blocks are patched" in result.out, result)
    expect("b:2.safetensors, strength 1: 4 modules" in result.out, result)
    result = shoal("generate", "-p", "x", *loras, *SMALL, "-o", os.path.join(folder, "a.png"))
    expect(result.code == 0 and note in result.out + result.err, result)
    said = json.loads(shoal("plan", *loras, *SMALL, "--json").out)
    expect([(round(one["strength"], 3), one["modules"], one["unmatched"]) for one in said["loras"]] ==
           [(0.7, 17, 0), (1.0, 4, 0), (-1.0, 3, 1)], said["loras"])
    expect(said["patched_blocks"] == 6 and said["lora_read_bytes"] > 0, said)
    result = shoal("plan", "--lora", loras[1].replace(":0.7", ":0"), *SMALL)
    expect("has no effect: its strength is 0" in result.out, result)
    result = shoal("plan", *loras, *SMALL, "--vram", "5MiB", "--wire", "packed")
    expect("--wire packed has no effect with --lora" in result.out, result)


@case
def pictures_say_what_was_added(folder):
    loras = adapters(folder)
    paint(folder, *loras)
    with open(os.path.join(folder, "picture.png"), "rb") as file:
        texts = png_texts(file.read())
    expect(b'LoRA: "a.safetensors:0.7, b:2.safetensors:1, c.safetensors:-1"' in texts, texts)


@case
def refusals(folder):
    loras = adapters(folder)
    path = loras[1].replace(":0.7", "")
    other = os.path.join(folder, "other.safetensors")
    maker = lora_files.Maker(1)
    maker.lora("lora_unet_blocks_0", 8, 8, 2)
    lora_files.write(other, maker.tensors)
    dora = os.path.join(folder, "dora.safetensors")
    maker.tensor("lora_unet_blocks_0.dora_scale", (8, 1))
    lora_files.write(dora, maker.tensors)
    large = os.path.join(folder, "large.safetensors")
    lora_files.write(large, {"transformer.layers.0.feed_forward.w2.diff": ((192, 511), [0.0] * (192 * 511))})
    for args, code, words in (
            (["--lora", ""], 2, ["--lora is empty"]),
            (["--lora", ":1"], 2, ["--lora is empty"]),
            (["--lora", path + ":101"], 2, ["out of range", "-100 to 100"]),
            (["--lora", path] * 9, 2, ["8 at once are the most"]),
            (["--lora", path, "--lora", path + ":2"], 2, ["is given twice"]),
            (["--lora", path + ":x"], 1, ["a.safetensors:x"]),
            (["--lora", os.path.join(MINI, DIT)], 2, ["in place of the model's"]),
            (["--lora", other], 1, ["none of its 1 modules", "lora_unet_blocks_0"]),
            (["--lora", dora], 2, ["dora_scale", "DoRA"]),
            (["--lora", large], 1, ["[192, 511]", "[192, 512]", "w2"])):
        refused(shoal("generate", "-p", "x", *args, *SMALL), code, *words)
    result = shoal("plan", "--lora", path, *SMALL, "--vram", "3MiB")
    expect(result.code == 3 and "3.7" in result.err, result)


@case
def budgets_hold(folder):
    loras = adapters(folder)
    args = ["-p", "a cat", *SMALL, *loras]
    want = paint(folder, *loras)
    for form in ("storage", "compute"):
        said = json.loads(shoal("plan", *args, "--json", "--host-format", form, "--resident-blocks", "0").out)
        least = ["--vram", str(said["least_vram_bytes"]), "--host-format", form]
        said = json.loads(shoal("plan", *args, "--json", *least).out)
        least += ["--ram", str(said["least_ram_bytes"])]
        result = shoal("generate", *args, "--json", *least, "-o", os.path.join(folder, "a.png"))
        expect(result.code == 0, result)
        report = json.loads(result.out)
        expect(report["pictures"][0]["picture_xxh3_128"] == want, report)
    said = json.loads(shoal("plan", *args, "--json").out)
    none = json.loads(shoal("plan", "-p", "a cat", *SMALL, "--json").out)
    expect(said["process_bytes"] - none["process_bytes"] >= said["lora_bytes"] >= 180000, said)


if __name__ == "__main__":
    main()
