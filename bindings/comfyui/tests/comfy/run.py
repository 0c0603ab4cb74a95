#!/usr/bin/env python3
"""Runs every inside*.py, and test_server.py, with a real ComfyUI, or says why not.

    COMFYUI_DIR=... [COMFYUI_PYTHON=...] run.py BUILD_FOLDER [part of a case's name]

SHOAL_COMFY_DEVICE=cuda runs on a card, with ComfyUI's options in SHOAL_COMFY_FLAGS.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.abspath(os.path.join(HERE, "..", "..", "..", ".."))


def missing(folder: str, python: str) -> str:
    """What is not there for a ComfyUI to start with, or nothing."""
    if not folder or not os.path.exists(os.path.join(folder, "comfy", "model_patcher.py")):
        return "set COMFYUI_DIR to a ComfyUI's folder"
    try:
        asked = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True,
                               timeout=300)
    except OSError as error:
        return f"COMFYUI_PYTHON: {error}"
    if asked.returncode:
        return f"{python} has no torch: set COMFYUI_PYTHON to ComfyUI's ({asked.stderr[-200:]})"
    return ""


def main() -> int:
    folder = os.environ.get("COMFYUI_DIR", "")
    python = os.environ.get("COMFYUI_PYTHON", "python3")
    why = missing(folder, python)
    if why:
        print("1..0 # SKIP", " ".join(why.split()))
        return 0
    path = [os.path.join(SOURCE, "bindings", "python"), os.environ.get("PYTHONPATH", "")]
    flags = "" if os.environ.get("SHOAL_COMFY_DEVICE", "cpu") != "cpu" else "--cpu"
    environment = {**os.environ, "COMFYUI_DIR": os.path.abspath(folder), "COMFYUI_PYTHON": python,
                   "SHOAL_COMFY_FLAGS": os.environ.get("SHOAL_COMFY_FLAGS", flags),
                   "SHOAL_LIBRARY": os.path.abspath(os.path.join(sys.argv[1], "libshoal.so")),
                   "PYTHONPATH": os.pathsep.join(filter(None, path))}
    runner = os.path.join(SOURCE, "bindings", "python", "tests", "run.py")
    codes = [subprocess.run(command + sys.argv[2:], env=environment, check=False).returncode
             for command in (*([python, one] for one in
                               sorted(glob.glob(os.path.join(HERE, "inside*.py")))),
                             [sys.executable, runner, sys.argv[1], "--folder", HERE])]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
