"""What the tests share: where things are, and the program to compare with."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import unittest

try:
    import numpy
except ImportError:
    numpy = None

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
BUILD = os.environ["SHOAL_BUILD"]
MODEL = os.path.join(SOURCE, "models", "shoal-mini")
# For processes that import the package too; rates that somebody measured here are not for tests.
os.environ["XDG_CACHE_HOME"] = "/nonexistent"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.join(SOURCE, "bindings", "python")}
SMALL = {"width": 64, "height": 64, "steps": 2}

needs_numpy = unittest.skipUnless(numpy, "numpy is not installed")


def program(*arguments: str, folder: str) -> dict:
    """Runs the program, whose standard output is one JSON object."""
    done = subprocess.run(
        [os.path.join(BUILD, "programs", "shoal", "shoal"), *arguments, "--json"], cwd=folder,
        capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


class _Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3_128(data: bytes) -> str:
    """As the program prints it."""
    hashed = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    hashed.restype, hashed.argtypes = _Hash, [ctypes.c_char_p, ctypes.c_size_t]
    value = hashed(data, len(data))
    return f"{value.high:016x}{value.low:016x}"
