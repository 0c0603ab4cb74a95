"""What streaming takes and did, as text for a person and as a picture of the last run."""

from __future__ import annotations

import os
import tempfile
from typing import Any, List, Optional, Tuple

import torch

from . import trace
from .measures import Run
from .options import GIB, gib

KEY = "shoal"
FITS = ("No block is streamed: as far as is known, the model fits into the device's memory. How "
        "many are is chosen before it runs.")


def report(patcher: Any) -> Tuple[str, torch.Tensor]:
    """Of the model that a shoal node returned, or of a clone of it: text, and [1, H, W, 3]."""
    binding = patcher.get_attachment(KEY)
    if binding is None:
        return _only("This model does not run through shoal: put Shoal Layer Streaming or Shoal "
                     "Block Swap before it, enabled.")
    session, host = binding.session, binding.host
    sizes, streamed = session.sizes, session.streamed_sizes
    title = f"{session.family.name}: {len(streamed)} of {len(sizes)} blocks streamed"
    lines = [f"{session.family.name} on {patcher.load_device}",
             f"{len(streamed)} of {len(sizes)} blocks streamed, {gib(sum(streamed))} of "
             f"{gib(sum(sizes))}; {len(sizes) - len(streamed)} left to ComfyUI"]
    if host is None or host.store.closed or host.last_run is None:
        why = (FITS if not streamed else
               "It has not run yet." if host is None or not host.runs else
               "Its last run failed, so there is nothing to tell of it.")
        return _only(f"{title}. {why}", "\n".join([*lines, why]))
    run, stats = host.last_run, host.store.stats
    if not run.walks:
        why = "None of the streamed blocks was called in the last run."
        return _only(f"{title}. {why}", "\n".join([*lines, why, "", host.text()]))
    seen = _trace(host)
    stalled = trace.covered(seen.stalls, 0.0, run.seconds)
    lines += ["", *_run_lines(run, stats, host, stalled, seen.complete), "", host.text()]
    facts = "  ·  ".join((
        _slots(stats), f"wire {_wire(stats)}",
        f"{gib(run.copied_bytes)} copied in {_count(run.walks, 'walk')}, {run.seconds:.2f} s",
        f"waited {run.wait_seconds:.3f} s for reads, at most {stalled:.2f} s for copies"))
    return "\n".join(lines), _picture(title, facts, seen, run)


def _trace(host: Any) -> trace.Trace:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path = os.path.join(folder, "trace.json")
        host.store.write_trace(path)
        return trace.read(path, host.names, host.last_run.begun_ns)


def _run_lines(run: Run, stats: Any, host: Any, stalled: float, complete: bool) -> List[str]:
    rate = run.copied_bytes / run.seconds / GIB if run.seconds else 0.0
    rows = [
        ("walks", f"{run.walks} (calls of the model), {run.seconds:.3f} s in all"),
        ("copied", f"{gib(run.copied_bytes)} to the device, {rate:.2f} GiB/s on average; "
                   f"{gib(run.read_bytes)} read into host memory"),
        ("waited", f"{run.wait_seconds:.3f} s for reads; at most {stalled:.3f} s no block ran "
                   "because its copy was on its way"
                   + ("" if complete else ", in the part of the run that was kept")),
        ("blocks cross", f"{_wire(stats)}: a walk copies {gib(stats.walk_copied_bytes)} for "
                         f"{gib(stats.weight_bytes)} of weights"
                         + _ratio(stats.walk_copied_bytes, stats.weight_bytes)),
        ("device", f"{gib(host.store.device_bytes)} for streamed blocks ({_slots(stats)})"),
        *_card_rows(run),
        ("host", f"{gib(stats.host_bytes)} for streamed blocks, {gib(stats.pinned_bytes)} of it "
                 "pinned"),
    ]
    return ["the last run", *(f"  {name:<13} {text}" for name, text in rows)]


def _card_rows(run: Run) -> List[Tuple[str, str]]:
    rows = []
    if run.torch_bytes is not None:
        rows.append(f"{gib(run.torch_bytes)} given out by torch's allocator at most")
    if run.used_bytes is not None:
        rows.append(f"{gib(run.used_bytes)} of the card's {gib(run.card_bytes)} in use at most, "
                    "by whoever (asked for once a walk)")
    return [("", row) for row in rows]


def _picture(title: str, facts: str, seen: trace.Trace, run: Run) -> torch.Tensor:
    from . import timeline  # late: Pillow

    return _tensor(timeline.draw(title, facts, seen, run.walks, run.seconds))


def _only(picture: str, text: Optional[str] = None) -> Tuple[str, torch.Tensor]:
    from . import timeline

    return text or picture, _tensor(timeline.message(picture))


def _tensor(image: Any) -> torch.Tensor:
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.reshape(1, image.height, image.width, 3).float() / 255


# ---- words ----

def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _slots(stats: Any) -> str:
    if stats.prefetch_slots == 1:
        return "single buffer"
    return f"double buffer, {stats.prefetch_slots} slots"


def _wire(stats: Any) -> str:
    if not stats.packed_blocks:
        return "raw"
    if stats.packed_blocks == stats.blocks:
        return "packed"
    return f"packed for {stats.packed_blocks} of {stats.blocks} blocks"


def _ratio(part: int, whole: int) -> str:
    return f" ({part / whole:.2f} of them)" if whole and part < whole else ""
