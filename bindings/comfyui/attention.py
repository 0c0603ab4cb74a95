"""sage_attention: what ComfyUI computes attention by, if the package sageattention is asked for.

ComfyUI has a function for that package. sage_pv_fp16 wants its kernels whose product of attention
weights and values is in FP16; what those cannot compute is left to ComfyUI's own attention, which
is said once.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
from comfy.ldm.modules import attention

from .options import Options, Refused

PACKAGE = "sageattention"
# Version 2, the first that works. The one of version 1 has no other product, and no name for it.
KERNELS = ("sageattn_qk_int8_pv_fp16_cuda", "sageattn_qk_int8_pv_fp16_triton")
OLD_KERNEL = "sageattn"
log = logging.getLogger("shoal")


class Abilities(NamedTuple):
    """What a version's kernels compute with; beside that they raise."""

    dtypes: Tuple[torch.dtype, ...]
    head_sizes: Tuple[int, ...]  # none: up to the largest
    largest_head: int


NEW = Abilities((torch.float16, torch.bfloat16), (), 128)
OLD = Abilities((torch.float16, torch.bfloat16, torch.float32), (64, 96, 128), 128)


def use(patcher: Any, options: Options) -> None:
    """Sets the attention of a patcher that the options ask for."""
    if not options.sage_attention:
        return
    if options.sage_pv_fp16:
        patcher.set_model_optimized_attention(PvFp16(*_kernels()))
        return
    if not getattr(attention, "SAGE_ATTENTION_IS_AVAILABLE", True):
        raise Refused(f"sage_attention: ComfyUI could not import {PACKAGE}.sageattn when it "
                      "started: install a version that its PyTorch can use, or turn it off")
    patcher.set_model_optimized_attention(attention.attention_sage)


def _kernels() -> Tuple[List[Callable[..., Any]], Abilities]:
    try:
        package = __import__(PACKAGE)
    except Exception as error:  # the package builds kernels: anything can be wrong with it
        raise Refused(f"sage_pv_fp16: {PACKAGE} cannot be imported: {error}. Install a version "
                      "that ComfyUI's PyTorch can use, or turn sage_pv_fp16 off") from None
    found = [getattr(package, name) for name in KERNELS if hasattr(package, name)]
    if found:
        return found, NEW
    if hasattr(package, OLD_KERNEL) and not any("_pv_" in name for name in dir(package)):
        return [getattr(package, OLD_KERNEL)], OLD
    raise Refused(f"sage_pv_fp16: this {PACKAGE} has neither {KERNELS[0]} nor {KERNELS[1]}: "
                  "install version 2, or turn sage_pv_fp16 off")


class PvFp16:
    """Called as ComfyUI's attention functions are."""

    def __init__(self, kernels: List[Callable[..., Any]], abilities: Abilities) -> None:
        self._kernels = list(kernels)
        self._abilities = abilities
        self._said: set = set()
        log.info("shoal: sage_pv_fp16: attention by %s.%s", PACKAGE, kernels[0].__name__)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int,
                 mask: Optional[torch.Tensor] = None, attn_precision: Any = None,
                 skip_reshape: bool = False, skip_output_reshape: bool = False,
                 **kwargs: Any) -> torch.Tensor:
        size = q.shape[-1] if skip_reshape else q.shape[-1] // heads
        why = self._cannot(q, size, mask, kwargs)
        if why is None:
            out = self._compute(q, k, v, size, skip_reshape, kwargs)
            if out is not None:
                return _shaped(out, skip_reshape, skip_output_reshape)
            why = "no kernel works here"
        self._say(why)
        return attention.optimized_attention(
            q, k, v, heads, mask=mask, attn_precision=attn_precision, skip_reshape=skip_reshape,
            skip_output_reshape=skip_output_reshape, **kwargs)

    def _cannot(self, q: torch.Tensor, size: int, mask: Any, kwargs: Any) -> Optional[str]:
        can = self._abilities
        if not kwargs.get("low_precision_attention", True):
            return "attention that the model wants to be exact"
        if mask is not None:
            return "attention with a mask"
        if q.dtype not in can.dtypes:
            return f"attention in {q.dtype}"
        if size > can.largest_head or can.head_sizes and size not in can.head_sizes:
            return f"heads of {size}"
        return None

    def _compute(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, size: int,
                 skip_reshape: bool, kwargs: Any) -> Optional[torch.Tensor]:
        """By the first kernel that works; those that do not are not tried again."""
        given = [q, k, v]
        if not skip_reshape:  # [batch, tokens, heads x size]; keys may have fewer heads
            given = [one.reshape(*one.shape[:2], -1, size) for one in given]
        given = [one if one.stride(-1) == 1 else one.contiguous() for one in given]
        while self._kernels:
            try:
                # Without smooth_k, as ComfyUI calls the package; version 1 would write to the keys.
                return self._kernels[0](*given, tensor_layout="HND" if skip_reshape else "NHD",
                                        is_causal=False, sm_scale=kwargs.get("scale"),
                                        smooth_k=False)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:
                failed = self._kernels.pop(0)
                log.warning("shoal: sage_pv_fp16: %s fails: %s", failed.__name__,
                            str(error) or type(error).__name__)
        return None

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            log.warning("shoal: sage_pv_fp16: %s: by ComfyUI's own attention", why)


def _shaped(out: torch.Tensor, heads_first: bool, heads_apart: bool) -> torch.Tensor:
    """As ComfyUI wants it: [batch, tokens, heads x size], or [batch, heads, tokens, size]."""
    if heads_apart:
        return out if heads_first else out.transpose(1, 2)
    if heads_first:
        out = out.transpose(1, 2)
    return out.reshape(*out.shape[:2], -1)
