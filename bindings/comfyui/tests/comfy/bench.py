#!/usr/bin/env python3
"""Seconds a step and device memory of a real ComfyUI with and without Shoal Layer Streaming.

    COMFYUI_DIR=... COMFYUI_PYTHON=... bench.py BUILD_FOLDER CHECKPOINT_FOLDER [MODE]
        [CASE[@GIB][:WITH...] ...]

For each case: a checkpoint of random weights and a real model's sizes; ComfyUI's dynamic VRAM and
its legacy mode, each in a process of its own; each with and without the node; on a card that seems
to have just so much memory, since ballast holds the rest. Prints one line of JSON a measurement:
seconds a step are the median of all but the first, memory is what the driver says is in use beside
the ballast, and the latent's hash tells whether bits differ. The case soak:N:CASE... is N
generations of these in a seeded order, on the whole card.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from bench_models import CASES, path
from server import Server

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.abspath(os.path.join(HERE, "..", "..", "..", ".."))
GIB = 1 << 30
STEPS = 6
MODES = {"dynamic": "", "legacy": "--disable-dynamic-vram"}
# The node's inputs, or no node; and a LoRA's seed.
NODES: Dict[str, Tuple[Optional[Dict[str, Any]], int]] = {
    "plain": (None, 0), "shoal": ({}, 0), "packed": ({"wire": "packed"}, 0),
    "all": ({"auto_config": False}, 0), "plain+lora": (None, 1), "shoal+lora": ({}, 1),
    "all+lora": ({"auto_config": False}, 1),
}


class Card:
    """The first one, by the driver alone."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._held: List[ctypes.c_uint64] = []
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self.bind()

    def bind(self) -> None:
        """In each thread that uses it."""
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def leave(self, wanted: int) -> int:
        """Holds what is free but so many bytes; 0: nothing. What others have is theirs."""
        for held in self._held:
            self._call("cuMemFree_v2", held)
        self._held.clear()
        end = time.monotonic() + 30
        while wanted and self.free() > wanted:
            held = ctypes.c_uint64()
            size = min(GIB, self.free() - wanted)  # one large piece may not be free
            try:
                self._call("cuMemAlloc_v2", ctypes.byref(held), ctypes.c_size_t(size))
            except RuntimeError:  # somebody has just taken it
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
                continue
            self._held.append(held)
            if size < GIB:
                break
        return self.free()

    def settled(self) -> int:
        """What is free, when that has not changed for a while."""
        now, before, end = self.free(), -1, time.monotonic() + 20
        while now != before and time.monotonic() < end:
            time.sleep(0.3)
            now, before = self.free(), now
        return now


class Watch(threading.Thread):
    """The least memory that was free between two looks at it."""

    def __init__(self, card: Card) -> None:
        super().__init__(daemon=True)
        self._card, self._least = card, card.free()

    def run(self) -> None:
        self._card.bind()
        while True:
            self._least = min(self._least, self._card.free())
            time.sleep(0.002)

    def take(self) -> int:
        least, self._least = self._least, self._card.free()
        return least


def workflow(case: str, node: Optional[Dict[str, Any]], lora: int, run: int) -> Dict[str, Any]:
    """A checkpoint as users load it, LoRA, the node, and a sampler that takes the time."""
    prompt: Dict[str, Any] = {"loader": {"class_type": "UNETLoader", "inputs": {
        "unet_name": os.path.basename(path("", case)), "weight_dtype": "default"}}}
    source = "loader"
    if lora:
        prompt["lora"] = {"class_type": "BenchLora", "inputs": {"model": [source, 0],
                                                                "seed": lora}}
        source = "lora"
    if node is not None:
        prompt["shoal"] = {"class_type": "ShoalLayerStreaming",
                           "inputs": {"model": [source, 0], **node}}
        source = "shoal"
    prompt["sampler"] = {"class_type": "BenchSampler", "inputs": {
        "model": [source, 0], "case": case, "steps": STEPS, "run": run}}
    return prompt


class Bench:
    """One ComfyUI in one of its modes."""

    def __init__(self, card: Card, watch: Watch, mode: str, folder: str) -> None:
        self._card, self._watch, self._mode = card, watch, mode
        card.leave(0)
        self._whole = card.free()
        flags = os.environ.get("SHOAL_COMFY_FLAGS", "")
        os.environ["SHOAL_COMFY_FLAGS"] = f"{flags} {MODES[mode]}".strip()
        try:
            self.server = Server("bench_nodes.py", folder)
        finally:
            os.environ["SHOAL_COMFY_FLAGS"] = flags
        self._runs = 0

    def measure(self, case: str, cap_gib: float, name: str) -> None:
        """Prints one line."""
        node, lora = NODES[name]
        self.server.ask("/free", {"unload_models": True, "free_memory": True})
        time.sleep(0.5)
        self._card.leave(0)
        self._card.settled()
        # What the process has already, its context, counts as well.
        own = self._whole - self._card.leave(0)
        room = self._card.leave(int(cap_gib * GIB) - own) + own if cap_gib else self._whole
        self._watch.take()
        self._runs += 1
        found: Dict[str, Any]
        try:
            found = json.loads(self.server.text(workflow(case, node, lora, self._runs), "sampler"))
        except AssertionError as error:
            found = {"failed": str(error)[:200]}
        print(json.dumps({"case": case, "mode": self._mode, "cap_gib": cap_gib, "with": name,
                          **found, "peak_gib": round((room - self._watch.take()) / GIB, 3)}),
              flush=True)


    def soak(self, cases: Sequence[str], count: int) -> None:
        """Generations with models, LoRA, the node and interrupts in a seeded order. Prints what
        is in use after every tenth, and each hash once."""
        chance, hashes, failed = random.Random(5), {}, []
        for run in range(count):
            case, name = chance.choice(cases), chance.choice(("all", "packed", "all+lora", "plain"))
            if chance.random() < 0.2:
                threading.Timer(chance.random() * 3, self.server.ask, ("/interrupt", {})).start()
            self._runs += 1
            try:
                text = self.server.text(workflow(case, *NODES[name], self._runs), "sampler")
                found = json.loads(text)
                hashes.setdefault(f"{case} {name}", set()).add(found["hash"])
            except AssertionError as error:
                failed.append(str(error)[:80])
            if run % 10 == 9:
                print(json.dumps({
                    "mode": self._mode, "runs": run + 1,
                    "rss_gib": round(self.server.rss() / GIB, 3),
                    "device_gib": round((self._whole - self._card.settled()) / GIB, 3),
                    "counted_pinned_gib": round(found["counted_pinned"] / GIB, 3)}), flush=True)
        print(json.dumps({"mode": self._mode, "failed": failed,
                          "hashes": {key: sorted(value) for key, value in hashes.items()}}),
              flush=True)


def main() -> int:
    if len(sys.argv) < 3 or not {"COMFYUI_DIR", "COMFYUI_PYTHON"} <= set(os.environ):
        print(__doc__)
        return 2
    try:
        card = Card()
    except (OSError, RuntimeError) as error:
        print(f"skipped: no card ({error})")
        return 0
    watch = Watch(card)
    watch.start()
    paths = [os.path.join(SOURCE, "bindings", "python"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["SHOAL_LIBRARY"] = os.path.abspath(os.path.join(sys.argv[1], "libshoal.so"))
    folder = os.path.abspath(sys.argv[2])
    modes = [one for one in sys.argv[3:] if one in MODES] or list(MODES)
    cases = [one.split(":") for one in sys.argv[3:] if one not in MODES] or [[one] for one in CASES]
    subprocess.run([os.environ["COMFYUI_PYTHON"], os.path.join(HERE, "bench_models.py"), folder,
                    *(case.partition("@")[0] for case, *_ in cases if case != "soak"),
                    *(name for case, *names in cases if case == "soak" for name in names[1:])],
                   check=True)
    for mode in modes:
        bench = Bench(card, watch, mode, folder)
        try:
            for case, *names in cases:
                if case == "soak":
                    bench.soak(names[1:], int(names[0]))
                    continue
                case, _, chosen = case.partition("@")
                for cap in [float(chosen)] if chosen else CASES[case].caps_gib:
                    for name in names or ("plain", "shoal"):
                        bench.measure(case, cap, name)
        finally:
            bench.server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
