"""What streaming takes and did, as text for a person."""

from __future__ import annotations

from typing import Any, List

from .options import GIB

KEY = "shoal"


def text(patcher: Any) -> str:
    """Of the model that a shoal node returned, or of a clone of it."""
    binding = patcher.get_attachment(KEY)
    if binding is None:
        return ("This model does not run through shoal: put Shoal Layer Streaming or Shoal Block "
                "Swap before it, enabled.")
    session = binding.session
    sizes, streamed = session.sizes, session.streamed_sizes
    lines: List[str] = [
        f"{session.family.name} on {patcher.load_device}",
        f"{len(streamed)} of {len(sizes)} blocks streamed, {sum(streamed) / GIB:.3f} of "
        f"{sum(sizes) / GIB:.3f} GiB; {len(sizes) - len(streamed)} left to ComfyUI",
    ]
    host = binding.host
    if host is None or host.store.closed:
        return "\n".join([*lines, "It has not run yet."])
    stats = host.store.stats
    lines += [f"{host.runs} runs; {stats.copied_bytes / GIB:.3f} GiB copied to the device, "
              f"{stats.wait_seconds:.3f} s waited for weights",
              f"host memory {stats.host_bytes / GIB:.3f} GiB, of it pinned "
              f"{stats.pinned_bytes / GIB:.3f} GiB", "", host.text()]
    return "\n".join(lines)
