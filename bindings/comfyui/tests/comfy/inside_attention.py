"""sage_pv_fp16 of Shoal Layer Streaming, in a real ComfyUI with a made-up package sageattention,
and on a card with the one that is installed.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import sys
import types
import unittest
from typing import Any, Dict, Iterator, Optional

import support
from support import (FAMILIES, Case, blocks_of, build, main, management, part, stream,
                     torch)

sample = functools.partial(support.sample, steps=2)


class Kernel:
    """A function of a made-up sageattention: plain attention, and how often it was asked."""

    def __init__(self, name: str, fails: Optional[str] = None) -> None:
        self.__name__, self._fails, self.calls = name, fails, 0

    def __call__(self, q: Any, k: Any, v: Any, tensor_layout: str = "HND", is_causal: bool = False,
                 sm_scale: Optional[float] = None, smooth_k: bool = True) -> Any:
        self.calls += 1
        assert self._fails is None, self._fails
        assert not is_causal and not smooth_k and q.ndim == k.ndim == v.ndim == 4
        if tensor_layout == "NHD":
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=sm_scale)
        return out.transpose(1, 2) if tensor_layout == "NHD" else out


@contextlib.contextmanager
def sageattention(**functions: Any) -> Iterator[None]:
    """A package of these functions is installed."""
    module = types.ModuleType("sageattention")
    module.__spec__ = importlib.machinery.ModuleSpec("sageattention", None)
    for name, function in functions.items():
        setattr(module, name, function)
    before, sys.modules["sageattention"] = sys.modules.get("sageattention"), module
    try:
        yield
    finally:
        del sys.modules["sageattention"]
        if before is not None:
            sys.modules["sageattention"] = before


CUDA, TRITON = "sageattn_qk_int8_pv_fp16_cuda", "sageattn_qk_int8_pv_fp16_triton"
SAGE = {"sage_attention": True, "sage_pv_fp16": True}


class Attention(Case):
    def close(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.assertLess(float((one - other).norm() / other.norm()), 0.02)

    def test_it_is_computed_by_the_package(self) -> None:
        for name in ("Wan", "Qwen-Image", "Z-Image", "MiniTrainDIT"):
            family = FAMILIES[name]
            patcher = build(family)
            plain = sample(patcher, family)
            if family.dtype == torch.float32:  # the new kernels' types have 16 bits
                made: Dict[str, Kernel] = {"sageattn": Kernel("sageattn")}
            else:
                made = {"sageattn": Kernel("sageattn", "not this one"), CUDA: Kernel(CUDA),
                        TRITON: Kernel(TRITON)}
            with self.subTest(family=name), sageattention(**made):
                streamed = stream(patcher, **SAGE)
                self.close(sample(streamed, family), plain)
                asked = {key: kernel.calls for key, kernel in made.items() if kernel.calls}
                blocks = len(blocks_of(patcher, family))
                self.assertEqual(set(asked), {CUDA} if CUDA in made else {"sageattn"})
                self.assertGreaterEqual(min(asked.values()), 2 * blocks)  # steps
                self.same(sample(stream(patcher), family), plain)
                self.assertEqual(asked, {key: kernel.calls for key, kernel in made.items()
                                         if kernel.calls})

    def test_one_kernel_stands_in_for_another(self) -> None:
        family = FAMILIES["Qwen-Image"]
        patcher = build(family)
        plain = sample(patcher, family)
        cuda, triton = Kernel(CUDA, "SM80 kernel is not available"), Kernel(TRITON)
        with sageattention(**{CUDA: cuda, TRITON: triton}), \
                self.assertLogs("shoal", "WARNING") as said:
            self.close(sample(stream(patcher, **SAGE), family), plain)
        self.assertEqual(cuda.calls, 1)
        self.assertGreaterEqual(triton.calls, 10)
        self.assertEqual(len([line for line in said.output if "SM80" in line]), 1)

    def test_what_it_cannot_do_is_left_to_comfyui_and_said_once(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        plain = sample(patcher, family)
        kernel, broken = Kernel(CUDA), Kernel(CUDA, "broken")
        for one, words in ((kernel, "torch.float32"), (broken, "torch.float32")):
            with sageattention(**{CUDA: one}), self.assertLogs("shoal", "WARNING") as said:
                self.same(sample(stream(patcher, **SAGE), family), plain)
            self.assertEqual(len([line for line in said.output if words in line]), 1)
            self.assertEqual(one.calls, 0)
        attention = part("attention")
        function = attention.PvFp16([broken], attention.NEW)
        q = torch.randn(2, 8, 128, dtype=torch.bfloat16)
        own = attention.attention.optimized_attention
        with self.assertLogs("shoal", "WARNING") as said:
            for heads, mask, extra in ((2, torch.zeros(8, 8, dtype=q.dtype), {}), (2, None, {}),
                                       (2, None, {"low_precision_attention": False})):
                for _ in range(2):
                    self.assertTrue(torch.equal(
                        function(q, q, q, heads, mask=mask, **extra),
                        own(q, q, q, heads, mask=mask)))
        self.assertEqual(len(said.output), 4)  # a mask, the failure, no kernel left, exactness
        big = torch.randn(1, 4, 256, dtype=torch.bfloat16)
        with self.assertLogs("shoal", "WARNING") as said:
            function(big, big, big, 1)
        self.assertIn("heads of 256", said.output[0])

    def test_every_layout_comes_back_as_comfyui_wants_it(self) -> None:
        attention = part("attention")
        function = attention.PvFp16([Kernel(CUDA)], attention.NEW)
        own = attention.attention.attention_pytorch
        apart = [torch.randn(2, heads, 8, 64, dtype=torch.bfloat16) for heads in (4, 2, 2)]
        flat = [one.transpose(1, 2).reshape(2, 8, -1) for one in apart]
        same = [apart[0]] * 3, [flat[0]] * 3
        for given, reshaped in zip(same, (True, False)):
            for heads_apart in (False, True):
                for scale in ({}, {"scale": 0.3}):
                    arguments = {"skip_reshape": reshaped, "skip_output_reshape": heads_apart,
                                 **scale}
                    found = function(*given, 4, **arguments)
                    wanted = own(*given, 4, **arguments)
                    self.assertEqual(found.shape, wanted.shape)
                    self.close(found.float(), wanted.float())

    def test_what_lacks_is_named(self) -> None:
        patcher = build(FAMILIES["Wan"])
        with self.assertRaisesRegex(ValueError, "turn that on too"):
            stream(patcher, sage_pv_fp16=True)
        for made in ({}, {"sageattn": Kernel("sageattn"), "sageattn_qk_int8_pv_fp8_cuda": None}):
            with sageattention(**made), self.assertRaisesRegex(ValueError, CUDA):
                stream(patcher, **SAGE)


@unittest.skipIf(importlib.util.find_spec("sageattention") is None,
                 "the package sageattention is not installed")
@unittest.skipIf(management.get_torch_device().type != "cuda", "its kernels need a card")
class Installed(Case):
    """With the package's own kernels."""

    def test_it_computes_nearly_the_same_and_streaming_changes_no_bit(self) -> None:
        for name in ("Qwen-Image", "Z-Image"):
            family = FAMILIES[name]
            patcher = build(family)
            plain = sample(patcher, family)
            for options in (SAGE, {"sage_attention": True}):
                with self.subTest(family=name, **options):
                    first = sample(stream(patcher, **options), family)
                    self.assertLess(float((first - plain).norm() / plain.norm()), 0.1)
                    other = stream(patcher, resident_blocks=1, **options)
                    self.same(sample(other, family), first)


if __name__ == "__main__":
    sys.exit(main(__name__))
