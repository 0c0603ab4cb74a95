"""What the nodes are asked for: checked, and refused with a sentence where it cannot be done.

Needs neither torch nor ComfyUI.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

GIB = 1 << 30
# What shoal calls the choices of the node.
BUFFER_MODES = ("double", "single")
WIRES = ("auto", "raw", "packed")
TIERINGS = ("ram", "ram_disk")
HOST_FORMATS = ("compute", "storage")
RESIDENT_MODES = ("first", "last", "spread")
SLOTS = (2, 6)
MOST_GB = 4096


def gib(size: float) -> str:
    """Bytes as text, in MiB if that says more."""
    if not size:
        return "0 B"
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.2f} MiB"


def shown(name: str) -> str:
    """A path as a message can show it: quoted, whatever is in it."""
    return "'" + name.encode("utf-8", "backslashreplace").decode() + "'"


class Refused(ValueError):
    """An input that cannot be done; the sentence says why, and what would do instead."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The inputs of Shoal Layer Streaming, but for the model. Sizes of 0 are no limit."""

    pin_memory: bool = True
    buffer_mode: str = "double"
    resident_blocks: int = 0
    sage_attention: bool = False
    host_format: str = "compute"
    tiering: str = "ram"
    ram_budget_gb: float = 0.0
    resident_mode: str = "first"
    sage_pv_fp16: bool = False
    auto_config: bool = True
    prefetch_slots: int = 3
    vram_budget_gb: float = 0.0
    wire: str = "auto"
    disk_cache: str = ""

    def check(self) -> None:
        """Refused, for whatever of it can be seen to be impossible before there is a model."""
        for name, choices in (("buffer_mode", BUFFER_MODES), ("wire", WIRES),
                              ("tiering", TIERINGS), ("host_format", HOST_FORMATS),
                              ("resident_mode", RESIDENT_MODES)):
            value = getattr(self, name)
            if value not in choices:
                raise Refused(f"{name} is {value!r}: give one of {', '.join(choices)}")
        for name in ("ram_budget_gb", "vram_budget_gb"):
            value = getattr(self, name)
            if not 0 <= value <= MOST_GB:  # nor "not a number", which a link can bring
                raise Refused(f"{name} is {value:g}: give 0 to {MOST_GB}, in GiB")
        if self.resident_blocks < 0:
            raise Refused(f"resident_blocks is {self.resident_blocks}: give 0 or more")
        if not SLOTS[0] <= self.prefetch_slots <= SLOTS[1]:
            raise Refused(f"prefetch_slots is {self.prefetch_slots}: give {SLOTS[0]} to {SLOTS[1]}")
        if self.disk_cache and self.tiering != "ram_disk":
            raise Refused("disk_cache is where tiering 'ram_disk' keeps what no checkpoint has: "
                          "choose that tiering, or leave disk_cache empty")
        if self.disk_cache and not self.ram_budget_gb:
            raise Refused("disk_cache: without a ram_budget_gb all streamed blocks stay in host "
                          "memory, and nothing is read from disk. Give a budget, or leave "
                          "disk_cache empty")
        if self.sage_pv_fp16 and not self.sage_attention:
            raise Refused("sage_pv_fp16 is a way to compute sage_attention: turn that on too, or "
                          "this off")
        if self.sage_attention and importlib.util.find_spec("sageattention") is None:
            raise Refused("sage_attention needs the package sageattention in ComfyUI's Python: "
                          "install it, or turn sage_attention off")

    def attempts(self) -> Iterator[Dict[str, Any]]:
        """Options for shoal.Store, the wanted ones first. With auto_config, less memory then."""
        common: Dict[str, Any] = {"wire": self.wire, "pin": "on" if self.pin_memory else "off"}
        if self.vram_budget_gb:
            common["vram"] = int(self.vram_budget_gb * GIB)
        if self.ram_budget_gb:
            common["ram"] = int(self.ram_budget_gb * GIB)
        if self.buffer_mode == "double":
            least = SLOTS[0] if self.auto_config else self.prefetch_slots
            for slots in range(self.prefetch_slots, least - 1, -1):
                yield {**common, "buffer": "double", "prefetch_slots": slots}
        if self.buffer_mode == "single" or self.auto_config:
            yield {**common, "buffer": "single"}

    @property
    def slots(self) -> int:
        """How many blocks the device holds at most."""
        return self.prefetch_slots if self.buffer_mode == "double" else 1


def residents(count: int, wanted: int, mode: str) -> List[int]:
    """Of `count` blocks, the indices of those that are left to ComfyUI."""
    if wanted >= count:
        raise Refused(f"resident_blocks is {wanted}, and the model has {count} blocks: nothing "
                      "would be streamed. Turn the node off instead")
    if mode == "first":
        return list(range(wanted))
    if mode == "last":
        return list(range(count - wanted, count))
    return [(2 * k + 1) * count // (2 * wanted) for k in range(wanted)]


MARGIN_BYTES = 128 << 20
_UNLIMITED = 1e30  # ComfyUI passes 1e32 for "as much as you like"
_GOLDEN = 0.6180339887498949


def spread_order(count: int) -> List[int]:
    """Of `count` blocks, the order in which they are given to streaming.

    However many are, they lie evenly between those that stay, whose arithmetic hides their copies:
    the fractional parts of the golden ratio's multiples leave no large gap (Steinhaus' three-gap
    theorem), and a longer choice contains the shorter ones.
    """
    return sorted(range(count), key=lambda at: (at + 1) * _GOLDEN % 1.0)


def is_limit(budget_bytes: float) -> bool:
    """Whether ComfyUI says how much a model may take. 0 is for modes that do not say."""
    return 0 < budget_bytes < _UNLIMITED


def stream_count(least: int, sizes: Sequence[int], other_bytes: int, ring_bytes: int,
                 room_bytes: float) -> int:
    """How many of the blocks must be streamed so that the rest of the model fits, `least` or more.

    `sizes` are the blocks' bytes in the order in which they are given to streaming, `other_bytes`
    the model's without blocks, and `ring_bytes` what streaming itself takes. `room_bytes` is what
    there is for all of it; if that is not a real size, nothing is raised.
    """
    count = min(least, len(sizes))
    while count < len(sizes):
        ring = ring_bytes if count else 0
        if other_bytes + sum(sizes[count:]) + ring <= room_bytes:
            break
        count += 1
    return count
