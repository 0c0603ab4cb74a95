#!/usr/bin/env python3
"""Tests of checkpoints in 8 bits: shoal-mini in F8, scaled or not, told of in each of the ways that there are.

    python3 tests/cli/test_cli_fp8.py path/to/shoal [part of a case's name]

Each picture must be the one that BF16 weights of the same values give, byte for byte.
"""

import json
import os
import re
import shutil
import subprocess
import sys

from harness import SMALL, SOURCE, case, expect, main, refused, shoal

MINI = os.path.join(SOURCE, "models", "shoal-mini")
MAKE = os.path.join(SOURCE, "tools", "make_fp8.py")
PARTS = {"transformer": "diffusion_pytorch_model.safetensors", "text_encoder": "model.safetensors"}


def make(folder, name, *options):
    """shoal-mini with transformer and text encoder in 8 bits."""
    to = os.path.join(folder, name)
    shutil.copytree(MINI, to)
    for part, file in PARTS.items():
        subprocess.run([sys.executable, MAKE, os.path.join(MINI, part, file),
                        os.path.join(to, part, file), *options], check=True)
    return to


def paint(model, *args):
    """Hashes of the pictures."""
    result = shoal("generate", "-m", model, "-p", "a cat", "--json", *SMALL, *args,
                   "-o", os.path.join(model, "picture.png"))
    expect(result.code == 0, result)
    return [picture["picture_xxh3_128"] for picture in json.loads(result.out)["pictures"]]


@case
def pictures_are_those_of_the_same_values_in_bf16(folder):
    pictures = set()
    for kind, keys in (("e4m3", ("comfy", "metadata", "legacy")), ("e4m3", ("none",)),
                       ("e5m2", ("legacy",)), ("e5m2", ("none",))):
        want = paint(make(folder, f"wide-{kind}-{keys[0]}", "--type", kind, "--keys", keys[0], "--wide"))
        pictures.add(tuple(want))
        for key in keys:
            got = paint(make(folder, f"{kind}-{key}", "--type", kind, "--keys", key))
            expect(got == want, (got, want), f"{kind}, {key}")
    expect(len(pictures) == 4, what="scaled and unscaled, or the types, paint the same picture")


@case
def no_plan_changes_a_bit(folder):
    model = make(folder, "model")
    result = shoal("verify", "-m", model, "-p", "a cat", "--vram", "6MiB", *SMALL[:4])
    expect(result.code == 0 and "Same bytes" in result.out, result)
    for plan in ("packed", "wide", "wide, least", "wide, half"):
        expect(re.search(rf"^{plan} +\d.* MiB", result.out, re.M), result, plan)


@case
def host_format_says_how_codes_wait_and_cross(folder):
    model = make(folder, "model", "--keys", "legacy")
    args = ["-m", model, "-p", "a cat", "--vram", "5MiB", "--resident-blocks", "4", "--width", "64",
            "--height", "64", "--steps", "3", "--json"]
    said = {}
    for form in ("storage", "compute"):
        result = shoal("generate", *args, "--host-format", form, "-o", os.path.join(folder, "a.png"))
        expect(result.code == 0 and "note" not in result.err.replace("note: computing", ""), result)
        planned = json.loads(shoal("plan", *args, "--host-format", form).out)
        said[form] = (json.loads(result.out)["pictures"][0]["picture_xxh3_128"],
                      planned["step_copy_bytes"], planned["widened_blocks"], planned["packed_blocks"])
    expect(said["storage"][0] == said["compute"][0], said)
    # Blocks are matrices but for some norms and biases.
    expect(1.9 < said["compute"][1] / said["storage"][1] < 2, said)
    expect(said["storage"][2:] == (0, 0) and said["compute"][2:] == (8, 0), said)


@case
def host_format_is_refused_or_noted_where_it_cannot_be(folder):
    model = make(folder, "model")
    compute = ["-m", model, "-p", "x", "--host-format", "compute", "--width", "64", "--height", "64"]
    refused(shoal("plan", *compute, "--wire", "packed"), 2, "--host-format compute and --wire packed")
    result = shoal("plan", *compute, "--vram", "4MiB", "--ram", "16MiB")
    expect(result.code == 3 and "leave --host-format out" in result.err, result)
    for args, why in ((["--vram", "max"], "every block is resident"),
                      (["--vram", "4MiB", "--steps", "1", "--cfg", "1"], "crosses only once"),
                      (["--vram", "4MiB", "-m", MINI], "only weights in FP8")):
        result = shoal("plan", *compute, *args)
        expect("--host-format compute has no effect: " in result.out + result.err and
               why in result.out + result.err, result, why)
    result = shoal("generate", *compute, "--json", "-o", os.path.join(folder, "a.png"))
    expect("--host-format compute has no effect here: every block stays" in result.err, result)


@case
def converted_and_cached_files_keep_their_scales(folder):
    for keys in ("comfy", "metadata", "legacy"):
        model = make(folder, keys, "--keys", keys)
        want = paint(model)
        result = shoal("convert", model, os.path.join(folder, f"{keys}-packed"))
        expect(result.code == 0, result)
        got = paint(os.path.join(folder, f"{keys}-packed"))
        expect(got == want, (got, want), keys)


@case
def inspect_shows_types_and_scales(folder):
    text = shoal("inspect", make(folder, "legacy", "--keys", "legacy"))
    expect(text.code == 0, text)
    for line in ("F8_E4M3 ", "weights have a scale, from ", "scales of inputs are not used"):
        expect(line in text.out, text, line)
    said = json.loads(shoal("inspect", "--json", os.path.join(folder, "legacy")).out)
    scales = [part["scales"] for file in said["checkpoints"] for part in file["parts"] if "scales" in part]
    expect(len(scales) == 2, said)
    for one in scales:
        expect(0 < one["least"] <= one["largest"] < 1, one)
        expect(0 < one["weights"] <= one["unused_of_inputs"] + 1, one)
    plain = shoal("inspect", make(folder, "none", "--keys", "none"))
    expect("F8_E4M3 " in plain.out and "scale" not in plain.out, plain)


@case
def a_format_that_is_not_computed_with_is_refused_by_name(folder):
    model = make(folder, "model", "--keys", "metadata")
    path = os.path.join(model, "transformer", PARTS["transformer"])
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(data.replace(b"float8_e4m3fn", b"nvfp4        "[:13], 1))
    refused(shoal("generate", "-m", model, "-p", "x", *SMALL), 1, "\"nvfp4        \"", path, "use the same model")


if __name__ == "__main__":
    main()
