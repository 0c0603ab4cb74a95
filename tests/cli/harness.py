"""What the tests of the program share: running it, and what must come out.

A file of cases decorates each with @case and ends with main(). It is called as

    python3 tests/cli/test_FILE.py path/to/shoal [part of a case's name]

and prints one TAP line a case. Standard library only.
"""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHOAL = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""
SMALL = ["--width", "64", "--height", "64", "--steps", "1"]
COMMANDS = ["generate", "plan", "verify", "devices", "samplers", "inspect", "trace", "bench", "convert",
            "cache"]
TIMEOUT = 300

CASES = []


def case(function):
    CASES.append(function)
    return function


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit code {self.code}\nstdout: {self.out[-1500:]!r}\nstderr: {self.err[-1500:]!r}"


def environment(**changes):
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "SHOAL_MODELS")}
    # Rates that somebody measured here must not change what the tests see.
    env.update({"TERM": "xterm", "XDG_CACHE_HOME": "/nonexistent", "SHOAL_DEVICE": "cpu", **changes})
    return env


def default_signals():
    """As an interactive shell starts a program, wherever these tests were started from."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def shoal(*args, folder=None, stdin=None, env=None, before=None, text=True, **streams):
    def prepare():
        default_signals()
        if before:
            before()

    streams.setdefault("stdout", subprocess.PIPE)
    streams.setdefault("stderr", subprocess.PIPE)
    done = subprocess.run([SHOAL, *args], cwd=folder, input=stdin, env=env or environment(),
                          preexec_fn=prepare, timeout=TIMEOUT, **streams)
    out, err = done.stdout or b"", done.stderr or b""
    return Result(done.returncode, out.decode() if text else out, err.decode())


def small_files_only():
    """A full disk, for shoal(before=...)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))


def expect(condition, result="", what=""):
    if not condition:
        raise AssertionError(f"{what}\n{result}")


def refused(result, code, *words):
    """One clear line on standard error, nothing on standard output."""
    expect(result.code == code, result, f"expected exit code {code}")
    expect(result.out == "", result, "standard output is not empty")
    errors = [line for line in result.err.splitlines() if line.startswith("shoal: error: ")]
    expect(len(errors) == 1, result, "expected one error line")
    for word in words:
        expect(word in errors[0], result, f"the error does not say '{word}'")


def plan(*args):
    """A plan's figures, and how they came."""
    result = shoal("plan", "-p", "a red apple", "--json", *args)
    expect(result.code in (0, 3), result)
    return json.loads(result.out), result


def png_chunks(data):
    expect(data[:8] == b"\x89PNG\r\n\x1a\n", data[:16], "no PNG signature")
    chunks, at = [], 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        crc, = struct.unpack(">I", data[at + 8 + length:at + 12 + length])
        expect(crc == zlib.crc32(kind + body), kind, "bad CRC")
        chunks.append((kind, body))
        at += 12 + length
    expect(chunks[-1][0] == b"IEND", what="no IEND")
    return chunks


def png_texts(data):
    texts = b""
    for kind, body in png_chunks(data):
        if kind == b"tEXt":
            texts += body + b"\n"
        elif kind == b"zTXt":
            key, rest = body.split(b"\0", 1)
            texts += key + b"\0" + zlib.decompress(rest[1:]) + b"\n"
        elif kind == b"iTXt":
            key, rest = body.split(b"\0", 1)
            packed, rest = rest[0], rest[2:].split(b"\0", 2)[2]
            texts += key + b"\0" + (zlib.decompress(rest) if packed else rest) + b"\n"
    return texts


def png_size(path):
    with open(path, "rb") as file:
        return struct.unpack(">II", png_chunks(file.read())[0][1][:8])


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    chosen = [c for c in CASES if len(sys.argv) == 2 or sys.argv[2] in c.__name__]
    failed = 0
    print(f"1..{len(chosen)}", flush=True)
    for number, function in enumerate(chosen, 1):
        with tempfile.TemporaryDirectory(prefix="shoal-cli-") as folder:
            start = time.monotonic()
            try:
                skip = function(folder)
                line = f"ok {number} - {function.__name__}" + (f" # {skip}" if skip else "")
            except Exception:  # pylint: disable=broad-except
                failed += 1
                line = f"not ok {number} - {function.__name__}"
                for text in traceback.format_exc().splitlines():
                    print("# " + text)
        print(line, flush=True)
        print(f"# {time.monotonic() - start:.2f} s", flush=True)
    sys.exit(1 if failed else 0)
