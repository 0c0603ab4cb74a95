#!/usr/bin/env python3
"""Tests of packed files as a user meets them: shoal convert, shoal cache, --disk-cache.

    python3 tests/cli/test_cli_convert.py path/to/shoal [part of a case's name]
"""

import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import threading
import time

from harness import (SHOAL, SMALL, SOURCE, TIMEOUT, case, default_signals, environment, expect,
                     main, refused, shoal, small_files_only)

MINI = os.path.join(SOURCE, "models", "shoal-mini")
DIT = os.path.join(MINI, "transformer", "diffusion_pytorch_model.safetensors")


def read_header(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length


def read_tensors(path):
    header, start = read_header(path)
    with open(path, "rb") as file:
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items()}


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(path, name), folder)
                  for path, _, names in os.walk(folder) for name in names)


def hashes(result):
    expect(result.code == 0, result)
    return [picture["picture_xxh3_128"] for picture in json.loads(result.out)["pictures"]]


@case
def a_packed_model_paints_the_same_picture(folder):
    result = shoal("convert", "mini", "packed", folder=folder)
    expect(result.code == 0 and result.err == "", result)
    for part in ("transformer", "text_encoder", "vae", "total"):
        expect(re.search(rf"^{part}: .* in .* \(0\.\d+\), .*GB/s$", result.out, re.M), result, part)
    expect(files_below(os.path.join(folder, "packed")) ==
           [name for name in files_below(MINI) if not os.path.basename(name).startswith(".")],
           files_below(os.path.join(folder, "packed")))
    args = ["generate", "-p", "x", "--json", "--vram", "9MiB", *SMALL]
    want = hashes(shoal(*args, folder=folder))
    for more in ([], ["--wire", "packed"], ["--ram", "30MiB"], ["--resident-blocks", "0"]):
        result = shoal(*args, "-m", "packed", *more, folder=folder)
        expect(hashes(result) == want, result, more)
    result = shoal("inspect", "packed", folder=folder)
    expect(re.search(r"BF16, packed: .* in .* \(0\.\d+\)", result.out), result)
    found = json.loads(shoal("inspect", "packed", "--json", folder=folder).out)["checkpoints"]
    plain = json.loads(shoal("inspect", "mini", "--json", folder=folder).out)["checkpoints"]
    for a, b in zip(found, plain):
        expect(a["bytes"] == b["bytes"] and a["tensors"] == b["tensors"], (a, b))
        expect(a["stored_bytes"] < b["stored_bytes"] == b["bytes"], (a, b))
        expect(sum(v if isinstance(v, int) else v["bytes"] for v in a["dtypes"].values()) ==
               a["bytes"], a)
    result = shoal("convert", "packed", "back", "--wire", "raw", "--json", folder=folder)
    expect(result.code == 0 and len(json.loads(result.out)["parts"]) == 3, result)
    for name in files_below(MINI):
        if os.path.basename(name).startswith("."):
            continue
        old, new = os.path.join(MINI, name), os.path.join(folder, "back", name)
        if name.endswith(".safetensors"):
            expect(read_tensors(old) == read_tensors(new), name)
            expect(read_header(old)[0].get("__metadata__") ==
                   read_header(new)[0].get("__metadata__"), name, "__metadata__")
        else:
            with open(old, "rb") as a, open(new, "rb") as b:
                expect(a.read() == b.read(), name)


@case
def the_container_is_a_safetensors_file(folder):
    expect(shoal("convert", DIT, "p.safetensors", folder=folder).code == 0, what="convert")
    header, start = read_header(os.path.join(folder, "p.safetensors"))
    metadata = header.pop("__metadata__")
    expect(start % 4096 == 0 and metadata["shoal.wire"] == "1", metadata)
    at = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        expect(begin == at, name, "a hole")
        at = end
        mark = metadata["shoal.wire." + name].split(" ")
        expect(re.fullmatch("[0-9a-f]{16}", mark[-1]), mark)
        if len(mark) == 4:
            expect(entry["dtype"] == "U8" and entry["shape"] == [end - begin], name)
            expect(begin % 64 == 0 and 0 <= end - begin - int(mark[2]) < 4096, name)
    expect(start + at == os.path.getsize(os.path.join(folder, "p.safetensors")), at)


@case
def damage_is_found(folder):
    expect(shoal("convert", "mini", "packed", folder=folder).code == 0, what="convert")
    path = os.path.join(folder, "packed", "transformer", "diffusion_pytorch_model.safetensors")
    header, start = read_header(path)
    name = next(name for name in header if header[name].get("dtype") == "U8")
    with open(path, "r+b") as file:
        file.seek(start + header[name]["data_offsets"][0] + 5000)
        file.write(b"damage")
    result = shoal("convert", "packed", "back", "--wire", "raw", folder=folder)
    expect(result.code == 1 and name in result.err and "checksum" in result.err, result)
    expect(os.listdir(folder) == ["packed"], os.listdir(folder))
    header["__metadata__"]["shoal.wire"] = "9"
    data = json.dumps(header).encode()
    with open(path, "rb") as file:
        file.seek(start)
        body = file.read()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(data)) + data + body)
    for args in (["inspect", path], ["generate", "-m", "packed", "-p", "x"]):
        result = shoal(*args, folder=folder)
        expect(result.code == 1 and "version '9'" in result.err, result)


@case
def what_cannot_be_converted(folder):
    with open(os.path.join(folder, "x.gguf"), "wb") as file:
        file.write(b"GGUF" + bytes(100))
    with open(os.path.join(folder, "there"), "wb") as file:
        file.write(b"there")
    os.mkdir(os.path.join(folder, "empty"))
    os.mkfifo(os.path.join(folder, "fifo"))
    before = sorted(os.listdir(folder))
    for args, code, words in (
            ([], 2, ["convert what"]), (["a"], 2, ["to what"]), (["a", "b", "c"], 2, ["'c'"]),
            (["", "b"], 2, ["empty path"]), (["no", "b"], 1, ["no: no such file"]),
            (["x.gguf", "b"], 1, ["x.gguf is a GGUF file", "packed already"]),
            (["there", "b"], 1, ["there"]), (["fifo", "b"], 1, ["FIFO"]),
            (["empty", "b"], 1, ["no checkpoint"]), (["mini", MINI], 2, ["the same"]),
            (["mini", os.path.join(MINI, "vae", "x")], 2, ["lies in"]),
            ([DIT, DIT, "--force"], 2, ["the same"]), ([DIT, "there"], 2, ["there", "--force"]),
            ([DIT, "empty", "--force"], 2, ["empty is a folder"]),
            (["mini", "there", "--force"], 2, ["there is a file"]),
            (["mini", "no/x"], 1, ["no/x"]), ([DIT, "no/x"], 1, ["no/x"]),
            ([DIT, "b", "--wire", "auto"], 2, ["--wire", "'auto'", "raw or packed"]),
            (["x.gguf", "b", "--json"], 1, ["packed already"]),
            ([DIT, "b", "--steps", "1"], 2, ["--steps"])):
        refused(shoal("convert", *args, folder=folder), code, *words)
        expect(sorted(os.listdir(folder)) == before, os.listdir(folder), args)
    expect(shoal("convert", DIT, "there", "--force", folder=folder).code == 0, what="--force")
    expect(read_header(os.path.join(folder, "there"))[0]["__metadata__"]["shoal.wire"] == "1")


@case
def a_full_disk_leaves_nothing(folder):
    for target in ("b", "b.safetensors"):
        source = MINI if target == "b" else DIT
        result = shoal("convert", source, target, folder=folder, before=small_files_only)
        refused(result, 1, "cannot write", target)
        expect(os.listdir(folder) == [], os.listdir(folder))
    result = shoal("generate", "-p", "x", *SMALL, "--wire", "packed", "--disk-cache", "c",
                   folder=folder, before=small_files_only)
    expect(result.code == 1 and "cannot write" in result.err, result)
    expect(files_below(folder) == [], files_below(folder))


@case
def ctrl_c_leaves_nothing(folder):
    """The source is large enough to be still at work when the signal comes."""
    big = os.path.join(folder, "big.safetensors")
    data = json.dumps({f"w.{i}": {"dtype": "BF16", "shape": [1 << 24], "data_offsets":
                                  [i << 25, (i + 1) << 25]} for i in range(40)}).encode()
    with open(big, "wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        file.truncate(8 + len(data) + (40 << 25))
    for number in (signal.SIGINT, signal.SIGTERM):
        run = subprocess.Popen([SHOAL, "convert", big, "out.safetensors"], cwd=folder,
                               env=environment(), preexec_fn=default_signals,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not any(name.endswith(".part") for name in os.listdir(folder)):
            if run.poll() is not None:
                break
        run.send_signal(number)
        out, err = run.communicate(timeout=TIMEOUT)
        if run.returncode == 0:
            return "SKIP it was done before the signal"
        expect(run.returncode == 128 + number and out == "", (run.returncode, out, err))
        expect("interrupted" in err, err)
        expect(os.listdir(folder) == ["big.safetensors"], os.listdir(folder))
    return None


@case
def the_cache_is_written_once_and_used(folder):
    args = ["generate", "-p", "x", "--json", "--vram", "9MiB", *SMALL]
    want = hashes(shoal(*args, folder=folder))
    with_cache = ["--wire", "packed", "--disk-cache", "c"]
    result = shoal("plan", "-p", "x", *with_cache, folder=folder)
    expect(result.code == 0 and "2 of 2 packed copies are not there yet" in result.err, result)
    expect("no effect" not in result.out, result, "copies would be written and read")
    result = shoal("plan", "-p", "x", "--json", *with_cache, folder=folder)
    expect("no effect" not in result.out + result.err, result)
    # With so little RAM only packed files will do: a plan knows how large they will be.
    tight = ["plan", "-p", "x", "--vram", "6MiB", "--ram", "15.5MiB", "--json", *with_cache]
    result = shoal(*tight, folder=folder)
    expect(result.code == 0 and not json.loads(result.out)["packed_while_read"], result)
    expected = json.loads(result.out)
    expect(not os.path.exists(os.path.join(folder, "c")), what="plan wrote something")
    result = shoal(*args, "--disk-cache", "c", folder=folder)
    expect(hashes(result) == want and "--disk-cache has no effect" in result.err, result)
    expect(not os.path.exists(os.path.join(folder, "c")), what="it had an effect")
    result = shoal(*args, *with_cache, folder=folder)
    expect(hashes(result) == want and "tensors packed" in result.err, result)
    files = {name: os.stat(os.path.join(folder, "c", name)).st_mtime_ns
             for name in os.listdir(os.path.join(folder, "c"))}
    expect(len(files) == 2 and all(re.fullmatch(r"shoal-[0-9a-f]{16}\.safetensors", name)
                                   for name in files), files)
    result = shoal(*args, *with_cache, folder=folder)
    expect(hashes(result) == want and "packed" not in result.err, result)
    result = shoal("plan", "-p", "x", *with_cache, folder=folder)
    expect("note" not in result.out + result.err, result, "all is resident, but read from the copies")
    expect(files == {name: os.stat(os.path.join(folder, "c", name)).st_mtime_ns
                     for name in os.listdir(os.path.join(folder, "c"))}, what="written again")
    result = shoal(*tight, folder=folder)
    for name in ("peak_vram_bytes", "least_vram_bytes", "least_ram_bytes", "step_copy_bytes"):
        expect(1 <= expected[name] / json.loads(result.out)[name] < 1.04, expected, result)
    result = shoal("verify", "--width", "64", "--height", "64", *with_cache, folder=folder)
    expect(result.code == 0 and "Same bytes" in result.out, result)
    shoal("convert", "mini", "packed", folder=folder)
    result = shoal("plan", "-m", "packed", "-p", "x", *with_cache, folder=folder)
    expect(result.code == 0 and "packed already" in result.err, result)


@case
def the_cache_is_listed_and_cleaned(folder):
    shoal("convert", "mini", "model", "--wire", "raw", folder=folder)
    expect(shoal("generate", "-m", "model", "-p", "x", *SMALL, "-o", "a.png", "--wire", "packed",
                 "--disk-cache", "c", folder=folder).code == 0, what="generate")
    cache = os.path.join(folder, "c")
    for name in ("mine.safetensors", "shoal-0123456789abcdef.safetensors.part"):
        with open(os.path.join(cache, name), "wb") as file:
            file.write(b"x" * 1000)
    result = shoal("cache", "c", folder=folder)
    expect(result.code == 0 and result.out.count("  current ") == 2, result)
    expect("unfinished" in result.out and "mine" not in result.out, result)
    expect(os.path.join("model", "transformer") in result.out, result)
    os.utime(os.path.join(folder, "model/transformer/diffusion_pytorch_model.safetensors"), (1, 1))
    entries = json.loads(shoal("cache", "c", "--json", folder=folder).out)["entries"]
    expect(sorted(entry["state"] for entry in entries) ==
           ["current", "original changed", "unfinished"], entries)
    result = shoal("cache", "c", "--remove-stale", folder=folder)
    expect(result.code == 0 and result.out.startswith("removed 1"), result)
    left = sorted(os.listdir(cache))
    expect(len(left) == 2 and left[0] == "mine.safetensors", left)
    for args, code, words in (
            ([], 2, ["cache where"]), ([""], 2, ["cache where"]), (["no"], 1, ["no"]),
            (["c", "x"], 2, ["'x'", "--remove"]),
            (["c", "--remove", "mine.safetensors"], 1, ["'mine.safetensors'"]),
            (["c", "--remove", "../a.png"], 1, ["'../a.png'"]),
            (["c", "--remove", "--remove-stale"], 2, ["leave one out"]),
            (["a.png"], 1, ["a.png"])):
        refused(shoal("cache", *args, folder=folder), code, *words)
    expect(shoal("cache", "c", "--remove", left[1], folder=folder).code == 0, what="--remove NAME")
    expect(os.listdir(cache) == ["mine.safetensors"], os.listdir(cache))
    result = shoal("cache", "c", folder=folder)
    expect(result.code == 0 and "0 files" in result.out, result)


@case
def the_cache_must_be_a_folder(folder):
    with open(os.path.join(folder, "file"), "wb") as file:
        file.write(b"x")
    for target in ("file", "no/where"):
        result = shoal("generate", "-p", "x", *SMALL, "--wire", "packed", "--disk-cache", target,
                       folder=folder)
        refused(result, 1, target)
    refused(shoal("generate", "-p", "x", "--disk-cache", ""), 2, "--disk-cache", "empty")
    expect(os.listdir(folder) == ["file"], os.listdir(folder))


def fill_cache(folder, model="mini", cache="c"):
    """Where the DiT's and the text encoder's copies lie, larger first."""
    expect(shoal("generate", "-m", model, "-p", "x", *SMALL, "-o", "f.png", "--wire", "packed",
                 "--disk-cache", cache, folder=folder).code == 0, what="filling the cache")
    path = os.path.join(folder, cache)
    return sorted(os.listdir(path), key=lambda name: -os.path.getsize(os.path.join(path, name)))


def generate_with_cache(folder, cache="c", model="mini"):
    """Ends by itself should it hang."""
    return shoal("generate", "-m", model, "-p", "x", "--json", *SMALL, "-o", "f.png", "--wire",
                 "packed", "--disk-cache", cache, folder=folder, before=lambda: signal.alarm(60))


@case
def a_copy_of_something_else_is_not_used(folder):
    """Under the right name: of a model of the same shapes, of a text encoder, of who knows what."""
    want = hashes(shoal("generate", "-p", "x", "--json", *SMALL, folder=folder))
    expect(shoal("convert", "mini", "alt", "--wire", "raw", folder=folder).code == 0, what="alt")
    path = os.path.join(folder, "alt", "transformer", "diffusion_pytorch_model.safetensors")
    header, start = read_header(path)
    with open(path, "r+b") as file:
        file.seek(start + header["layers.5.feed_forward.w1.weight"]["data_offsets"][0])
        file.write(bytes(10000))
    names, others = fill_cache(folder), fill_cache(folder, "alt", "d")
    expect(shoal("convert", DIT, "nameless", folder=folder).code == 0, what="convert")
    target = os.path.join(folder, "c", names[0])
    for source, word in ((os.path.join("d", others[0]), os.path.join(folder, "alt")),
                         (os.path.join("c", names[1]), "text_encoder"),
                         ("nameless", "does not say")):
        shutil.copy(os.path.join(folder, source), target)
        refused(generate_with_cache(folder), 1, word, f"shoal cache c --remove {names[0]}")
        refused(shoal("plan", "-p", "x", "--wire", "packed", "--disk-cache", "c", folder=folder),
                1, word)
        result = shoal("cache", "c", folder=folder)
        expect(re.search(names[0] + " .* unusable", result.out), result)
    expect(shoal("cache", "c", "--remove", names[0], folder=folder).code == 0, what="--remove")
    expect(hashes(generate_with_cache(folder)) == want, what="another picture")


@case
def a_damaged_copy_is_to_be_removed(folder):
    """Before the other copy is written; nobody can download it."""
    for name in fill_cache(folder):
        path = os.path.join(folder, "c", name)
        for bytes_left in (100000, 1000, 0):
            os.truncate(path, bytes_left)
            result = generate_with_cache(folder)
            refused(result, 1, f"shoal cache c --remove {name}", "written anew")
            expect("again" not in result.err and "GB/s" not in result.err, result)
        os.remove(path)


@case
def what_is_no_file_is_no_copy(folder):
    """Found before anything is written, and without waiting for who opens the other end."""
    makers = (os.mkdir, os.mkfifo, lambda path: os.symlink("/nonexistent", path),
              lambda path: os.symlink("/dev/null", path))
    for name in fill_cache(folder):
        for ending in ("", ".part"):
            for make in makers:
                for other in os.listdir(os.path.join(folder, "c")):
                    os.remove(os.path.join(folder, "c", other))
                path = os.path.join(folder, "c", name + ending)
                make(path)
                result = generate_with_cache(folder)
                refused(result, 1, name)
                expect("GB/s" not in result.err, result, "something was packed")
                expect(os.listdir(os.path.join(folder, "c")) == [name + ending], what="written")
                result = shoal("cache", "c", "--remove", folder=folder,
                               before=lambda: signal.alarm(60))
                expect(result.code == (1 if make is os.mkdir else 0), result)
                if make is os.mkdir:
                    os.rmdir(path)


@case
def a_models_own_folders_hold_no_cache(folder):
    """Copies beside a part's file would make it one of several."""
    expect(shoal("convert", "mini", "m", "--wire", "raw", folder=folder).code == 0, what="convert")
    os.symlink("m/text_encoder", os.path.join(folder, "link"))
    before = files_below(folder)
    for cache in ("m/transformer", "m/transformer/", "m/../m/text_encoder", "m/vae", "link"):
        for command in ("generate", "plan"):
            result = shoal(command, "-m", "m", "-p", "x", *SMALL, "--wire", "packed",
                           "--disk-cache", cache, folder=folder)
            refused(result, 2, cache, "another folder")
            expect(files_below(folder) == before, files_below(folder))
    os.rename(os.path.join(folder, "m", "transformer", "diffusion_pytorch_model.safetensors"),
              os.path.join(folder, "dit.safetensors"))
    os.symlink("../../dit.safetensors",
               os.path.join(folder, "m/transformer/diffusion_pytorch_model.safetensors"))
    for cache in ("m/transformer", "."):
        refused(generate_with_cache(folder, cache, "m"), 2, cache, "another folder")
    fill_cache(folder, "m", "m")
    expect(generate_with_cache(folder, "m", "m").code == 0, what="the model's folder itself")


@case
def removing_goes_on_past_what_stays(folder):
    kept = ["shoal-1111111111111111.safetensors", "shoal-3333333333333333.safetensors.part"]
    for option in ("--remove", "--remove-stale"):
        for name in kept:
            os.makedirs(os.path.join(folder, "c", name), exist_ok=True)
        for digit in "24":
            with open(os.path.join(folder, "c", f"shoal-{digit * 16}.safetensors"), "wb") as file:
                file.write(b"x")
        result = shoal("cache", "c", option, folder=folder)
        expect(result.code == 1 and result.out == "removed 2 B\n", result)
        for name in kept:
            expect(result.err.count(name) == 1, result, name)
        expect(result.err.count("shoal: error: ") == 2, result)
        expect(sorted(os.listdir(os.path.join(folder, "c"))) == kept, what=option)


@case
def waiting_for_another_is_said(folder):
    """Once, and what it waits for; then the copy that the other has written is used."""
    name = fill_cache(folder)[0]
    path = os.path.join(folder, "c", name)
    os.rename(path, path + ".kept")
    with open(path + ".part", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with subprocess.Popen([SHOAL, "generate", "-p", "x", *SMALL, "-o", "f.png", "--wire",
                               "packed", "--disk-cache", "c"], cwd=folder, env=environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            timer = threading.Timer(30, run.kill)
            timer.start()
            line = run.stderr.readline()
            expect(line == f"waiting for another shoal that writes c/{name}\n", line)
            time.sleep(0.5)
            os.rename(path + ".kept", path)
            out, err = run.communicate(timeout=TIMEOUT)
            timer.cancel()
    expect(run.returncode == 0 and "waiting" not in err, (run.returncode, out, err))


if __name__ == "__main__":
    main()
