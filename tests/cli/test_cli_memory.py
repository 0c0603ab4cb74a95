#!/usr/bin/env python3
"""Tests of the memory tiers as a user meets them: that --ram is a hard cap, and changes nothing.

    python3 tests/cli/test_cli_memory.py path/to/shoal [part of a case's name]
"""

import glob
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys

import lora_files
from harness import (SHOAL, SMALL, SOURCE, TIMEOUT, case, environment, expect, main, plan, refused,
                     shoal)

MINI = os.path.join(SOURCE, "models/shoal-mini")

# A process's peak counts what it was forked from; so the program is started by a small one.
LAUNCHER = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(pid, 0)
print(used.ru_maxrss * 1024, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def sanitized():
    with open(SHOAL, "rb") as file:
        data = file.read()
    return b"__asan_init" in data or b"__tsan_init" in data


def launch(folder, *args):
    """What the program did, and its peak of host memory in bytes."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", LAUNCHER, SHOAL, *args], cwd=folder,
                          env=environment(), capture_output=True, timeout=TIMEOUT, check=False)
    return done, int(done.stderr.split()[-1])


def measure(folder, *args):
    """What generate reports, and the process's peak of host memory in bytes, the CPU device's arena
    apart."""
    done, peak = launch(folder, "generate", "-p", "a red apple", "--json", *args)
    expect(done.returncode == 0, done.stderr)
    figures = json.loads(done.stdout)
    return figures, peak - figures["report"]["peak_vram_bytes"]


def least(*args):
    """The options that give the least of both budgets."""
    vram = str(plan(*args)[0]["least_vram_bytes"])
    ram = str(plan("--vram", vram, *args)[0]["least_ram_bytes"])
    return ["--vram", vram, "--ram", ram]


def with_ram(*args, share):
    """--ram with room for a share of the DiT's weights."""
    figures = plan(*args)[0]
    return ["--ram", str(figures["process_bytes"] + figures["dit_weight_bytes"] * share // 100)]


@case
def host_memory_never_exceeds_the_plan(folder):
    if sanitized():
        return "SKIP the sanitizers' own memory is in the process"
    big = ["--width", "128", "--height", "128", "--steps", "4"]
    long = ["--width", "64", "--height", "64", "--steps", "40", "--trace", "t.json"]
    picture = os.path.join(folder, "init.png")
    wide = ["--width", "512", "--height", "384", "--steps", "1"]
    expect(shoal("generate", "-p", "x", *wide, "-o", picture).code == 0, picture)
    begun = ["--init", picture, "--strength", "0.5", "--steps", "2", "--sampler",
             "euler_ancestral"]
    for args in (SMALL, [*SMALL, *least(*SMALL)], [*big, *least(*big)],
                 [*big, *with_ram(*big, share=50), "--resident-blocks", "0"],
                 [*big, "--vram", "6MiB", *with_ram(*big, "--vram", "6MiB", share=25), "--cfg",
                  "1"],
                 [*SMALL, "--threads", "1", *least("--threads", "1", *SMALL)],
                 [*SMALL, "--threads", "7", "--count", "9"],
                 [*SMALL, *(word for i in range(40) for word in ("-p", f"a boat, {i} " * 30))],
                 ["--width", "256", "--height", "192", "--steps", "1", "--vram", "32MiB"],
                 [*begun, *least(*begun)], [*begun, "--count", "3", "--sampler", "heun"],
                 [*long, *least(*SMALL, "--steps", "40")[:2]]):
        figures, used = measure(folder, *args)
        planned, budget = figures["plan"]["ram_bytes"], figures["plan"]["ram_budget_bytes"]
        expect(used <= planned, (args, used, planned), "more than the plan says")
        expect(budget is None or planned <= budget, (args, planned, budget))
    return None


def write_tokenizer(path, size):
    """shoal-mini's with made-up tokens and merges up to `size` tokens, pair by pair."""
    with open(os.path.join(MINI, "tokenizer/tokenizer.json"), encoding="utf-8") as file:
        data = json.load(file)
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    parts = [left + right for left in letters for right in letters]
    added = len(data["added_tokens"])
    for part in parts:
        vocab.setdefault(part, len(vocab) + added)
    for left in parts:
        for right in parts:
            if left + right not in vocab and len(vocab) < size:
                vocab[left + right] = len(vocab) + added
                merges.append([left, right])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2)


def write_text_encoder(path, size):
    """shoal-mini's, with an embedding of zeros, behind the others, for so many tokens."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    embed = header.pop("embed_tokens.weight")
    begin, end = embed["data_offsets"]
    for name, tensor in header.items():
        if name != "__metadata__" and tensor["data_offsets"][0] >= end:
            tensor["data_offsets"] = [at - (end - begin) for at in tensor["data_offsets"]]
    rest = len(data) - (end - begin)
    embed["shape"][0] = size
    embed["data_offsets"] = [rest, rest + size * embed["shape"][1] * 2]
    text = json.dumps({**header, "embed_tokens.weight": embed}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data[:begin] + data[end:])
        file.truncate(8 + len(text) + embed["data_offsets"][1])


@case
def a_large_tokenizer_is_charged(folder):
    if sanitized():
        return "SKIP the sanitizers' own memory is in the process"
    size, model = 60000, os.path.join(folder, "model")
    shutil.copytree(MINI, model)
    write_tokenizer(os.path.join(model, "tokenizer/tokenizer.json"), size)
    write_text_encoder(os.path.join(model, "text_encoder/model.safetensors"), size + 100)
    config = os.path.join(model, "text_encoder/config.json")
    with open(config, encoding="utf-8") as file:
        text = file.read().replace('"vocab_size": 2048', f'"vocab_size": {size + 100}')
    with open(config, "w", encoding="utf-8") as file:
        file.write(text)
    budgets = ["-m", model, *SMALL, *least("-m", model, *SMALL)]
    figures, used = measure(folder, *budgets)
    small = plan(*SMALL)[0]["process_bytes"]
    expect(figures["plan"]["process_bytes"] > small + 500 * size * 9 // 10, figures["plan"])
    expect(used <= figures["plan"]["ram_bytes"], (used, figures["plan"]))
    return None


@case
def adapters_are_charged(folder):
    if sanitized():
        return "SKIP the sanitizers' own memory is in the process"
    large, many = os.path.join(folder, "large.safetensors"), os.path.join(folder, "many.safetensors")
    rank = 12000
    lora_files.write(large, {name: (shape, bytes(4 * shape[0] * shape[1])) for name, shape in (
        ("lora_unet_layers_0_feed_forward_w2.lora_up.weight", (192, rank)),
        ("lora_unet_layers_0_feed_forward_w2.lora_down.weight", (rank, 512)))})
    tensors = {f"lora_unet_of_another_model_{i}.diff": ((1,), bytes(4)) for i in range(40000)}
    lora_files.write(many, {**tensors, "lora_unet_layers_0_attention_norm_q.diff": ((64,), bytes(256))})
    none, _ = measure(folder, *SMALL)
    for path, takes in ((large, 4 * rank * 704), (many, 5 << 20)):
        for args in ([], ["--resident-blocks", "0"], ["--resident-blocks", "0", "--host-format", "compute"]):
            args = [*SMALL, "--lora", path, *args]
            report, peak = measure(folder, *args, *least(*args))
            expect(peak <= report["plan"]["ram_bytes"], (peak, report["plan"]["ram_bytes"]), f"{path} {args}")
            more = report["plan"]["process_bytes"] - none["plan"]["process_bytes"]
            expect(takes <= more <= 2 * takes + (96 << 20), (more, takes))
        refused(shoal("plan", *SMALL, "--lora", path, "--ram", "16MiB"), 3, "--ram", path)


def with_header(path, change):
    """The safetensors file with its header changed."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    change(header)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def with_json(path, change):
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    change(data)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, separators=(",", ":"))


HEAVY = {
    "many pairs of metadata": ("transformer/diffusion_pytorch_model.safetensors", lambda path: with_header(
        path, lambda header: header.update(
            __metadata__={f"key {i}": f"value {i}" for i in range(300000)}))),
    "one long text": ("tokenizer/tokenizer.json", lambda path: with_json(
        path, lambda data: data.update(junk="x" * (16 << 20)))),
    "numbers": ("tokenizer/tokenizer.json", lambda path: with_json(
        path, lambda data: data.update(junk=[0] * 2000000))),
    "empty objects": ("tokenizer/tokenizer.json", lambda path: with_json(
        path, lambda data: data.update(junk=[{}] * 300000))),
    "an index": ("vae/diffusion_pytorch_model.safetensors.index.json", lambda path: write_index(path)),
}


def write_index(path):
    """An index beside the VAE's file, with metadata that nobody reads."""
    with open(os.path.join(os.path.dirname(path), "diffusion_pytorch_model.safetensors"), "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        names = [name for name in json.loads(file.read(length)) if name != "__metadata__"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"metadata": {str(i): i for i in range(200000)},
                   "weight_map": {name: "diffusion_pytorch_model.safetensors" for name in names}}, file)


@case
def what_reading_the_files_takes_is_charged(folder):
    if sanitized():
        return "SKIP the sanitizers' own memory is in the process"
    for name, (file, make) in HEAVY.items():
        model = os.path.join(folder, name)
        shutil.copytree(MINI, model)
        path = os.path.join(model, file)
        make(path)
        args = ["-m", model, *SMALL]
        budgets = least(*args)
        figures, used = measure(folder, *args, *budgets)
        planned = figures["plan"]["ram_bytes"]
        expect(used <= planned <= int(budgets[-1]), (name, used, planned))
        expect(planned < 2.5 * used, (name, used, planned), "charged for far too much")
        # Refused by the plan, then before it is read: the file is named, and --ram is kept to.
        for ram in (planned - 4096, 16 << 20):
            result, peak = launch(folder, "generate", "-p", "x", *args, "--ram", str(ram))
            expect(result.returncode == 3, (name, result))
            expect(path.encode() in result.stderr and f"--ram {ram}".encode() in result.stderr,
                   (name, result))
            expect(peak <= ram, (name, peak, ram), "more than --ram was taken to refuse it")
        shutil.rmtree(model)
    return None


@case
def settings_that_take_much_memory_are_refused(folder):
    for file in ("transformer/config.json", "scheduler/scheduler_config.json"):
        model = os.path.join(folder, "model")
        shutil.copytree(MINI, model)
        with_json(os.path.join(model, file), lambda data: data.update(junk=[{}] * 200000))
        refused(shoal("generate", "-p", "x", "-m", model, folder=folder), 1, file)
        shutil.rmtree(model)


@case
def a_quarter_of_the_weights_in_ram_gives_the_same_picture(folder):
    files = []
    for name, args in (("all.png", []), ("quarter.png", ["--resident-blocks", "0", *with_ram(
            "--resident-blocks", "0", share=25)])):
        result = shoal("generate", "-p", "a red apple", "--json", "--steps", "3", "-o", name, *args,
                       folder=folder)
        expect(result.code == 0, result)
        with open(os.path.join(folder, name), "rb") as file:
            files.append(file.read())
    figures = json.loads(result.out)
    planned, report = figures["plan"], figures["report"]
    expect(files[0] == files[1], what="the picture's bytes differ")
    expect(0 < planned["disk_blocks"] < planned["blocks"], planned)
    expect(report["step_read_bytes"] == planned["step_disk_bytes"] > 0, result)
    expect(report["read_bytes"] > 2 * report["step_read_bytes"], result)
    expect(re.fullmatch(r"(io_uring|\d+ threads), (direct|cached)", report["reader"]), result)
    disk = [phase for phase in planned["phases"] if phase["phase"] == "steps"][0]
    expect(disk["disk_blocks"] == planned["disk_blocks"] and disk["disk_bytes"] > 0, disk)


@case
def the_least_ram_works_and_a_page_less_is_refused(folder):
    for args in (["--resident-blocks", "0"], ["--vram", "6MiB"], []):
        figures = plan(*SMALL, *args)[0]
        least_ram = figures["least_ram_bytes"]
        expect(figures["process_bytes"] < least_ram <= figures["ram_bytes"], figures)
        result = shoal("generate", "-p", "x", *SMALL, *args, "--ram", str(least_ram - 4096),
                       folder=folder)
        expect(result.code == 3 and os.listdir(folder) == [], result)
        expect(f"--ram {least_ram - 4096}" in result.err and str(least_ram) in result.err, result)
        result = shoal("generate", "-p", "x", *SMALL, *args, "--ram", str(least_ram), "-o", "x.png",
                       folder=folder)
        expect(result.code == 0, result)
        os.unlink(os.path.join(folder, "x.png"))
        refused_plan, result = plan(*SMALL, *args, "--ram", str(least_ram - 1))
        expect(result.code == 3 and not refused_plan["fits"], result)
        expect(f"--ram {least_ram} (" in refused_plan["refusal"], result)
    refused(shoal("generate", "-p", "x", "--ram", "1KiB", "--json", folder=folder), 3, "--ram 1024")
    refused(shoal("verify", "--ram", "1KiB", *SMALL), 3, "--ram 1024")


@case
def more_ram_reads_no_more_from_disk(folder):
    args = ["--resident-blocks", "0"]
    read, full = None, plan(*args)[0]["ram_bytes"]
    least_ram = plan(*args)[0]["least_ram_bytes"]
    for part in range(0, 11):
        budget = least_ram + (full - least_ram) * part // 10
        figures, result = plan(*args, "--ram", str(budget))
        expect(figures["ram_bytes"] <= budget, result, budget)
        expect(read is None or figures["step_disk_bytes"] <= read, result, "more is read")
        read = figures["step_disk_bytes"]
    expect(read == 0, read, "with the RAM of no limit blocks are on disk")
    figures, result = plan(*args, "--ram", str(10 * full))
    expect(figures["ram_bytes"] == full and figures["notes"] == [], result)


@case
def packed_files(folder):
    packed, streamed = os.path.join(folder, "packed"), ["--resident-blocks", "0"]
    expect(shoal("convert", MINI, packed).code == 0, what="convert")
    result = shoal("verify", "-m", packed, "--json", *SMALL, "--steps", "2")
    expect(result.code == 0, result)
    rows = {row["plan"]: row for row in json.loads(result.out)["plans"]}
    expect(rows["all on disk"]["packed_blocks"] == rows["all on disk"]["blocks"], result)
    expect("packed, half" in rows, result)
    for row in rows.values():
        expect(row["step_read_bytes"] == row["planned_step_read_bytes"], row)
    left_out = json.loads(result.out)["left_out"]
    expect([row["plan"] for row in left_out] == ["raw"], left_out)
    plain, _ = plan(*streamed)
    figures, _ = plan("-m", packed, *streamed)
    expect(figures["step_copy_bytes"] < 0.8 * plain["step_copy_bytes"], figures)
    for command in ("generate", "plan", "verify"):
        result = shoal(command, "-p", "x", "-m", packed, "--wire", "raw", "--json", *streamed)
        expect(result.code == 3 and "packed/transformer/" in result.err, result)
        expect("leave --wire out" in result.err, result)
    result = shoal("plan", "-p", "x", "-m", packed, "--wire", "raw", "--vram", "6MiB")
    least_vram = re.search(r"or give --vram (\d+)", result.err)
    expect(result.code == 3 and least_vram, result)
    expect(plan("-m", packed, "--wire", "raw", "--vram", least_vram.group(1))[0]["fits"], result)
    if not sanitized():
        figures, used = measure(folder, "-m", packed, *SMALL, *least("-m", packed, *SMALL))
        expect(used <= figures["plan"]["ram_bytes"], (used, figures["plan"]))


@case
def plain_files_are_packed_while_they_are_read(folder):
    picture = os.path.join(folder, "raw.png")
    args = [*SMALL, "--steps", "2"]
    expect(shoal("generate", "-p", "a cat", *args, "-o", picture).code == 0, what="raw")
    with open(picture, "rb") as file:
        raw = file.read()
    cases = [["--vram", vram, *least] for vram in ("6MiB", "8MiB", "12MiB")
             for least in ([], ["--ram"])] + [["--resident-blocks", "0", "--lanes", "1"]]
    for case_args in cases:
        case_args = [*case_args, "--wire", "packed"]
        if "--ram" in case_args:
            case_args.remove("--ram")
            least_ram = plan(*args, *case_args)[0]["least_ram_bytes"]
            case_args += ["--ram", str(least_ram)]
            result = shoal("generate", "-p", "x", *args, *case_args[:-1], str(least_ram - 1))
            expect(result.code == 3 and f"--ram {least_ram} " in result.err, result)
            expect("leave --wire out" in result.err, result)
        result = shoal("generate", "-p", "a cat", *args, *case_args, "-o", picture)
        expect(result.code == 0 and "while they were read" in result.out, result, case_args)
        expect("packed while they are read" in result.out, result, case_args)
        with open(picture, "rb") as file:
            expect(file.read() == raw, result, case_args)
        figures, _ = plan(*args, *case_args)
        expect(figures["packed_while_read"] and figures["notes"] == [], figures)
        if not sanitized():
            figures, used = measure(folder, *args, *case_args)
            expect(used <= figures["plan"]["ram_bytes"], (used, figures["plan"]), case_args)


def spoil_a_tensor(path):
    """All bits random and no exponent rare, but in the pages that are looked at before: as long as
    those are eight, in the middle of eighths. Returns its name."""
    with open(path, "r+b") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
        name = max((name for name, entry in header.items()
                    if name.startswith("layers.") and entry["dtype"] == "BF16"),
                   key=lambda name: header[name]["data_offsets"][1] - header[name]["data_offsets"][0])
        begin, end = (offset + 8 + length for offset in header[name]["data_offsets"])
        first, pages = -(-begin // 4096), end // 4096 - -(-begin // 4096)
        sampled = {first + (2 * i + 1) * pages // 16 for i in range(8)}
        values = random.Random(1)
        for page in range(first, first + pages):
            if page not in sampled:
                file.seek(page * 4096)
                # Tiny, but of all exponents; the bits are sign, 8 of the exponent, mantissa.
                file.write(b"".join(struct.pack("<H", values.randrange(0x3c00) |
                                                values.randrange(2) << 15) for _ in range(2048)))
    return name


@case
def a_tensor_that_is_not_like_its_sample(folder):
    model = os.path.join(folder, "odd")
    shutil.copytree(MINI, model)
    name = spoil_a_tensor(glob.glob(os.path.join(model, "transformer", "*.safetensors"))[0])
    args = ["-p", "a cat", "-m", model, *SMALL, "--steps", "2", "--resident-blocks", "0"]
    pictures = [os.path.join(folder, wire + ".png") for wire in ("raw", "packed")]
    expect(shoal("generate", *args, "--wire", "raw", "-o", pictures[0]).code == 0, what="raw")
    result = shoal("generate", *args, "--wire", "packed", "-o", pictures[1])
    expect(result.code == 0 and name in result.out, result)
    expect("note: weights were not packed after all" in result.out, result)
    with open(pictures[0], "rb") as raw, open(pictures[1], "rb") as packed:
        expect(raw.read() == packed.read(), result)
    result = shoal("generate", *args, "--wire", "packed", "--json", "-o", pictures[1])
    expect(name in json.loads(result.out)["report"]["note"], result)
    result = shoal("verify", *args[:-2], "--json")
    expect(result.code == 0 and json.loads(result.out)["same"], result)


@case
def verify_covers_the_tiers(folder):
    result = shoal("verify", "--json", *SMALL, "--steps", "2")
    expect(result.code == 0, result)
    figures = json.loads(result.out)
    rows = {row["plan"]: row for row in figures["plans"]}
    expect(figures["model"] == "shoal-mini" and figures["same"] is True, result)
    expect({"50 % in RAM", "25 % in RAM", "all on disk", "half on disk",
            "least of both"} <= set(rows), result)
    expect(rows["all on disk"]["disk_blocks"] == rows["all on disk"]["blocks"], result)
    expect(rows["packed"]["packed_blocks"] == rows["packed"]["blocks"], result)
    expect(rows["packed"]["step_bytes"] < 0.75 * rows["no residents"]["step_bytes"], result)
    expect({"packed, least", "packed, half"} <= set(rows), result)
    expect(0 < rows["50 % in RAM"]["disk_blocks"] < rows["50 % in RAM"]["blocks"], result)
    expect(rows["half on disk"]["resident_blocks"] == rows["half on disk"]["blocks"] // 2, result)
    for row in rows.values():
        expect(row["step_read_bytes"] == row["planned_step_read_bytes"], row)
        expect((row["disk_blocks"] > 0) == (row["step_read_bytes"] > 0), row)
        expect(row["ram_bytes"] is None or row["planned_ram_bytes"] <= row["ram_bytes"], row)
    result = shoal("verify", *SMALL)
    expect(result.code == 0 and result.out.startswith("shoal-mini: "), result)
    expect("the same as " in result.out and "all on disk" in result.out, result)
    expect(max(map(len, result.out.splitlines())) <= 90, result)


if __name__ == "__main__":
    main()
