"""shoal for ComfyUI: the blocks of its transformers run on weights that wait in host memory.

Nothing is imported until ComfyUI asks for the nodes, so that the parts that need neither torch nor
ComfyUI can be tested without them.
"""

from __future__ import annotations

from typing import Any


async def comfy_entrypoint() -> Any:
    """What ComfyUI calls for the pack's nodes."""
    from .nodes import extension

    return extension()
