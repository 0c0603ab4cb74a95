#!/usr/bin/env python3
"""Tests of how the program finds, shows and refuses models; of samplers, pictures to begin with, and verify.

    python3 tests/cli/test_cli_models.py path/to/shoal [part of a case's name]
"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib

from harness import SHOAL, SMALL, SOURCE, TIMEOUT, case, environment, expect, main, plan, refused, shoal


# ---- models and inspect ----


@case
def devices_and_inspect(folder):
    result = shoal("devices")
    expect(result.code == 0 and "cpu" in result.out, result)
    expect(isinstance(json.loads(shoal("devices", "--json").out), dict), what="devices --json")
    result = shoal("inspect", "mini")
    expect(result.code == 0 and result.err == "", result)
    expect(isinstance(json.loads(shoal("inspect", "mini", "--json").out), dict),
           what="inspect --json")


@case
def samplers_are_listed_and_each_paints(folder):
    result = shoal("samplers")
    expect(result.code == 0 and result.err == "", result)
    listed = json.loads(shoal("samplers", "--json").out)
    for entry in listed["samplers"] + listed["schedules"]:
        expect(entry["name"] in result.out and entry["about"] in result.out, result, entry)
    expect(listed["samplers"][0]["name"] == "euler", listed)
    expect(listed["schedules"][0]["name"] == "model", listed)
    small = ["--width", "64", "--height", "64", "--steps", "3"]
    seen = set()
    for sampler in listed["samplers"]:
        calls = 2 * sampler["calls_a_step"] + 1
        result = shoal("generate", "-p", "x", *small, "--sampler", sampler["name"], "--schedule",
                       "karras", "--json", "-o", "x.png", folder=folder)
        expect(result.code == 0, result)
        said = json.loads(result.out)
        expect(said["plan"]["calls"] == calls and said["plan"]["schedule"] == "karras", said)
        expect(f"step {calls}/{calls}" in result.err, result)
        seen.add(said["pictures"][0]["latents_xxh3_128"])
        with open(os.path.join(folder, "x.png"), "rb") as file:
            data = file.read()
        text = f"Sampler: {sampler['name']}, Schedule type: karras, CFG"
        expect(text.encode() in data, text)
    expect(len(seen) == len(listed["samplers"]), seen)
    result = shoal("plan", "-p", "x", *small, "--sampler", "heun", "--schedule", "beta")
    expect("heun, beta" in result.out and "heun calls the model 5 times in 3 steps" in result.out,
           result)


@case
def runs_begin_with_a_picture(folder):
    small = ["--width", "64", "--height", "48"]
    first = ["generate", "-p", "a red apple", "--json", "--steps", "4", "-o", "x.png"]
    expect(shoal(*first, *small, folder=folder).code == 0, what="the first picture")
    again = [*first[:-1], "y.png", "--seed", "1", "--init", "x.png"]
    seen = set()
    for strength in ("0.2", "0.5", "1"):
        result = shoal(*again, "--strength", strength, folder=folder)
        expect(result.code == 0 and "encode" in result.err, result)
        said = json.loads(result.out)
        expect((said["plan"]["width"], said["plan"]["height"]) == (64, 48), said)
        expect(said["plan"]["phases"][-1]["phase"] == "encode", said)
        expect(("--init has no effect" in str(said["notes"]) + str(said["plan"]["notes"])) ==
               (strength == "1"), said)
        seen.add(said["pictures"][0]["latents_xxh3_128"])
        with open(os.path.join(folder, "y.png"), "rb") as file:
            expect(f"Denoising strength: {strength}".encode() in file.read(), strength)
    alone = shoal(*again[:-2], *small, folder=folder)
    seen.add(json.loads(alone.out)["pictures"][0]["latents_xxh3_128"])
    expect(len(seen) == 3, seen, "strength 1 is noise alone")
    refused(shoal(*again, "--width", "64", "--height", "64", folder=folder), 2, "64 x 48",
            "64 x 64")
    refused(shoal(*again[:-1], "/dev/null", folder=folder), 1, "/dev/null")
    large = os.path.join(folder, "large.png")  # 48 MB of pixels in 47 KB
    with open(large, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        rows = zlib.compress(bytes(4096 * (3 * 4096 + 1)))
        for kind, body in ((b"IHDR", struct.pack(">IIBBBBB", 4096, 4096, 8, 2, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")):
            file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    refused(shoal(*again[:-1], large, "--ram", "20MiB", folder=folder), 3, "--init", "large.png", "--ram")
    odd = os.path.join(SOURCE, "models", "shoal-mini", "samples.png")
    refused(shoal(*again[:-1], odd, folder=folder), 2, "--init", "samples.png", "1040 x 284", "multiples of 16")
    with open(os.path.join(folder, "x.png"), "r+b") as file:
        file.truncate(500)
    refused(shoal(*again, folder=folder), 1, "x.png", "PNG")


@case
def the_embedded_model_is_found(folder):
    models = os.path.join(SOURCE, "models")
    expect(shoal("inspect", "mini", env=environment(SHOAL_MODELS=models)).code == 0, models)
    result = shoal("inspect", "mini", env=environment(SHOAL_MODELS=folder))
    expect(result.code != 0 and "SHOAL_MODELS" in result.err, result)
    tree = os.path.join(folder, "tree")
    shutil.copytree(os.path.join(models, "shoal-mini"),
                    os.path.join(tree, "share/shoal/models/shoal-mini"))
    os.mkdir(os.path.join(tree, "bin"))
    shutil.copy(SHOAL, os.path.join(tree, "bin/shoal"))
    moved = subprocess.run([os.path.join(tree, "bin/shoal"), "inspect", "mini"],
                           capture_output=True, env=environment(), timeout=TIMEOUT, check=False)
    expect(moved.returncode == 0, moved)


@case
def a_model_that_is_not_there(folder):
    result = shoal("generate", "-p", "x", "-m", "no/such/model", folder=folder)
    expect(result.code in (1, 2) and "no/such/model" in result.err, result)
    result = shoal("generate", "-p", "x", "-m", folder, folder=folder)
    expect(result.code in (1, 2) and result.err.startswith("shoal: error: "), result)


def safetensors(header, body=b""):
    return struct.pack("<Q", len(header)) + header + body


HOSTILE = {
    "empty.safetensors": b"",
    "short.safetensors": b"\x10",
    "huge-header.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
    "negative-header.safetensors": struct.pack("<q", -1) + b"{}",
    "past-end.safetensors": safetensors(
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', b"\0" * 8),
    "overflow.safetensors": safetensors(
        b'{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}}',
        b"\0" * 16),
    "reversed.safetensors": safetensors(
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}', b"\0" * 16),
    "overlap.safetensors": safetensors(
        b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},'
        b'"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}', b"\0" * 12),
    "negative-shape.safetensors": safetensors(
        b'{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}', b"\0" * 16),
    "no-json.safetensors": safetensors(b"not json at all"),
    "list.safetensors": safetensors(b"[1,2,3]"),
    "deep.safetensors": safetensors(b"[" * 100000 + b"]" * 100000),
    "escapes.safetensors": safetensors(
        b'{"\\u001b[31mred\\u0007\\u009b31m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"\0"),
    "dtype.safetensors": safetensors(
        b'{"a":{"dtype":"F3000","shape":[4],"data_offsets":[0,16]}}', b"\0" * 16),
    "version.gguf": b"GGUF" + struct.pack("<IQQ", 99, 1, 1),
    "counts.gguf": b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60),
    "string.gguf": b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1 << 63) + b"x",
    "cut.gguf": b"GGUF" + struct.pack("<I", 3),
    "text.txt": b"hello\n",
    "zeros.bin": b"\0" * 65536,
}


@case
def inspect_of_hostile_files(folder):
    for name, data in HOSTILE.items():
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(data)
        for args in ([path], [path, "--json"]):
            result = shoal("inspect", *args)
            expect(result.code in (0, 1, 2), result, name)
            expect(result.code == 0 or name in result.err, result, f"{name} is not named")
            expect(not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.out + result.err), result,
                   f"{name} reaches the terminal")
            expect("Sanitizer" not in result.err, result, name)
            if result.code == 0 and "--json" in args:
                json.loads(result.out)
        result = shoal("generate", "-p", "x", "-m", path, folder=folder)
        expect(result.code in (1, 2), result, name)
    fifo = os.path.join(folder, "fifo")
    os.mkfifo(fifo)
    for path in (fifo, "/dev/zero", "/dev/null", folder, os.path.join(folder, "none")):
        result = shoal("inspect", path)
        expect(result.code in (0, 1, 2), result, path)


@case
def a_damaged_model_is_refused(folder):
    model = os.path.join(folder, "model")
    weights = os.path.join(model, "transformer/diffusion_pytorch_model.safetensors")
    shutil.copytree(os.path.join(SOURCE, "models/shoal-mini"), model)
    os.chmod(os.path.dirname(weights), 0o755)
    os.chmod(weights, 0o644)
    os.truncate(weights, os.path.getsize(weights) - 1)
    result = shoal("generate", "-p", "x", "-m", model, folder=folder)
    expect(result.code == 1 and "transformer" in result.err, result)
    os.unlink(weights)
    result = shoal("generate", "-p", "x", "-m", model, folder=folder)
    expect(result.code == 1 and "transformer" in result.err, result)
    expect(os.listdir(folder) == ["model"], os.listdir(folder))


@case
def inspect_tells_damaged_from_missing(folder):
    model = os.path.join(folder, "model")
    weights = os.path.join(model, "transformer/diffusion_pytorch_model.safetensors")
    shutil.copytree(os.path.join(SOURCE, "models/shoal-mini"), model)
    for path in (os.path.dirname(weights), weights):
        os.chmod(path, 0o755)
    os.truncate(weights, os.path.getsize(weights) - 1)
    result = shoal("inspect", model)
    expect(result.code == 1 and "missing: diffusion" not in result.out, result)
    expect("\ndamaged or unreadable: diffusion transformer\n" in result.out, result)
    expect("VAE: KL autoencoder" in result.out, result, "the other parts are described")
    expect(f"problem: {weights} is truncated" in result.out, result)
    expect(f"shoal: error: {model}: a part is damaged" in result.err, result)
    result = shoal("inspect", model, "--json")
    figures = json.loads(result.out)
    expect(result.code == 1 and figures["damaged"] == ["diffusion transformer"], result)
    expect(figures["missing"] == [], result)
    os.unlink(weights)
    result = shoal("inspect", model)
    expect(result.code == 0 and result.err == "", result)
    expect("missing: diffusion transformer" in result.out and "damaged" not in result.out, result)
    figures = json.loads(shoal("inspect", model, "--json").out)
    expect(figures["missing"] == ["diffusion transformer"] and figures["damaged"] == [], figures)
    for name in ("a", "b"):  # which is meant cannot be told, but they are there
        shutil.copy(os.path.join(model, "vae/diffusion_pytorch_model.safetensors"),
                    os.path.join(model, f"transformer/{name}.safetensors"))
    result = shoal("inspect", model)
    expect(result.code == 0 and "several .safetensors" in result.out, result)
    expect("missing" not in result.out, result)


# ---- measuring ----


@case
def bench_models_has_a_row_for_each_cap(folder):
    def bench(caps):
        return subprocess.run([sys.executable, os.path.join(SOURCE, "tools", "bench_models.py"), SHOAL,
                               os.path.join(SOURCE, "models", "shoal-mini"), "--vram", caps, "--steps", "2", "--",
                               *SMALL[:4]], capture_output=True, text=True, timeout=TIMEOUT)

    result = bench("none,4MiB")
    rows = [line.split(" | ") for line in result.stdout.splitlines()[4:]]
    expect(result.returncode == 0 and [row[0] for row in rows] == ["| none", "| 4MiB"], result)
    expect(rows[0][2] == "12 of 12" and rows[1][2] != "12 of 12", rows)
    result = bench("none,1MiB")
    expect(result.returncode == 1 and "--vram 1MiB: " in result.stderr and "least" in result.stderr, result)
    expect(result.stdout.count("12 of 12") == 1, result)


# ---- verify ----


@case
def verify_passes(folder):
    result = shoal("verify", *SMALL, folder=folder)
    expect(result.code == 0 and "Same bytes" in result.out, result)
    expect("DIFFERENT" not in result.out and "\x1b" not in result.out, result)
    expect(os.listdir(folder) == [], os.listdir(folder))


@case
def verify_json_and_the_plan_as_asked(folder):
    least = plan(*SMALL)[0]["least_vram_bytes"]
    result = shoal("verify", "--json", "--vram", str(least + 12345), *SMALL)
    expect(result.code == 0, result)
    figures = json.loads(result.out)
    plans = figures["plans"]
    expect(figures["same"] is True and len(plans) >= 4, figures)
    expect(any(row["plan"] == "as asked" for row in plans), figures)
    for name in ("latents_xxh3_128", "pictures_xxh3_128"):
        expect(len({row[name] for row in plans}) == 1, plans, name)
    for row in plans:
        expect(row["peak_vram_bytes"] == row["planned_peak_vram_bytes"], row)
        expect(row["step_bytes"] == row["planned_step_bytes"], row)
        expect(row["step_read_bytes"] == row["planned_step_read_bytes"] > 0, row, "a single step")
    expect(any(row["resident_blocks"] < row["blocks"] for row in plans), plans, "nothing streamed")
    expect(len({row["strip_blocks"] > 0 for row in plans}) == 2, plans, "a VAE whole and in strips")
    expect(figures["width"] == figures["height"] == 64, figures)
    same, names = figures["same_plans"], {row["plan"] for row in plans}
    expect(len(same) > 0, figures)
    expect(all(row["as"] in names and row["plan"] not in names for row in same), same)
    refused(shoal("verify", "--vram", "1KiB", *SMALL), 3, "--vram")


if __name__ == "__main__":
    main()
