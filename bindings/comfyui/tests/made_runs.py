"""Traces of runs that never were, as a store writes them."""

from __future__ import annotations

from typing import Any, Dict, List

BEGUN_NS = 5_000_000_000


def names(blocks: int) -> List[str]:
    return [f"layers.{index}" for index in range(blocks)]


def run(blocks: int, walks: int, copy: float, use: float, slots: int = 3, read: float = 0.0,
        unpack: float = 0.0, rest: float = 0.1, dropped: int = 0) -> Dict[str, Any]:
    """Seconds of a block's copy, use, reading (in the first walk) and unpacking; and between walks.

    The link and the device each do one thing at a time, in order; `slots` blocks at once.
    """
    events: List[Dict[str, Any]] = []
    linked = reading = device = 0.0
    freed: List[float] = []

    def add(kind: str, begin: float, end: float, name: str) -> None:
        events.append({"ph": "X", "cat": kind, "name": name, "ts": 1e6 * begin,
                       "dur": 1e6 * (end - begin), "args": {"bytes": 0}})

    for walk in range(walks):
        device += rest
        for index, name in enumerate(names(blocks)):
            at = walk * blocks + index
            if walk == 0 and read:
                add("read", reading, reading + read, name)
                reading += read
                if reading > device:
                    add("wait", device, reading, name)
            begin = max(linked, freed[at - slots] if at >= slots else 0.0,
                        reading if walk == 0 else 0.0)
            linked = begin + copy
            add("copy", begin, linked, name)
            begin = max(device, linked)
            if unpack:
                add("unpack", begin, begin + unpack, name)
                begin += unpack
            device = begin + use
            add("compute", begin, device, name)
            freed.append(device)
    events.sort(key=lambda event: event["ts"])
    threads = [{"ph": "M", "pid": 1, "tid": 300, "name": "thread_name", "args": {"name": "copy"}}]
    return {"traceEvents": [*threads, *events],
            "otherData": {"begin_ns": BEGUN_NS + 100_000_000, "dropped": dropped}}
