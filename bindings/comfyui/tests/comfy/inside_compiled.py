"""Runs inside ComfyUI's Python: torch.compile before and after the node.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import unittest
from typing import Any, Iterator, List

from support import (DYNAMIC, build, main, management, sample, stream, swap, torch,
                     weights)

from comfy_api.torch_helpers import set_torch_compile_wrapper
from comfy_extras.nodes_torch_compile import TorchCompileModel
from inside_traps import WAN, Trap


class Compiled(Trap):
    def setUp(self) -> None:
        torch.compiler.reset()
        self.addCleanup(torch.compiler.reset)

    def compiled(self, patcher: Any, **options: Any) -> Any:
        patcher = patcher.clone(disable_dynamic=True)  # as ComfyUI's node does
        set_torch_compile_wrapper(patcher, **{"backend": "eager", **options})
        return patcher

    def orders(self, patcher: Any, **options: Any) -> Iterator[Any]:
        """With the node after the one that compiles, and before."""
        torch.compiler.reset()
        yield stream(self.compiled(patcher, **options))
        if not DYNAMIC:  # where the model would be copied after the node
            torch.compiler.reset()
            yield self.compiled(stream(patcher), **options)

    @contextlib.contextmanager
    def graphs(self) -> Iterator[List[int]]:
        """How many were compiled; given at the end."""
        counters, counted = torch._dynamo.utils.counters, []
        counters.clear()
        yield counted
        counted.append(counters["stats"]["unique_graphs"])

    def test_blocks_run_as_they_are_and_the_rest_is_compiled(self) -> None:
        patcher = build(WAN)
        before = weights(patcher)
        plain = sample(patcher, WAN, steps=1)
        for streamed in self.orders(patcher):
            with self.assertLogs("shoal", "WARNING") as said:
                first = sample(streamed, WAN, steps=1)
            self.assertIn("not compiled", " ".join(said.output))
            self.same(first, plain)
            with self.graphs() as counted:
                self.same(sample(streamed, WAN, steps=1), plain)
            self.assertEqual(counted, [0])  # nothing is compiled again in later runs
            self.at_rest(streamed)
            self.same(sample(patcher, WAN, steps=1), plain)
            self.untouched(patcher, before)

    def test_blocks_that_are_not_streamed_are_compiled(self) -> None:
        """Those that could be as well: any of the blocks but the first, on a card with room."""
        family = copy.copy(WAN)
        family.unet = {**WAN.unet, "num_layers": 12}
        patcher = build(family)
        plain = sample(patcher, family, steps=1)
        captured = []
        for streamed in (12, 2):
            torch.compiler.reset()
            swapped = swap(self.compiled(patcher), streamed)
            with self.graphs(), torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                self.same(sample(swapped, family, steps=1), plain)
                captured.append(torch._dynamo.utils.counters["stats"]["calls_captured"])
        self.assertGreater(captured[1], captured[0])

    def test_more_blocks_compile_no_more(self) -> None:
        counts = []
        for layers in (4, 12):  # more than dynamo compiles a function for
            family = copy.copy(WAN)
            family.unet = {**WAN.unet, "num_layers": layers}
            torch.compiler.reset()
            with self.graphs() as counted, torch._dynamo.config.patch(
                    fail_on_recompile_limit_hit=True):
                sample(stream(self.compiled(build(family))), family, steps=1)
            counts += counted
        self.assertGreater(counts[0], 0)
        self.assertEqual(counts[0], counts[1])

    def test_blocks_compiled_one_by_one_run_as_they_are(self) -> None:
        keys = [f"diffusion_model.blocks.{at}" for at in range(5)]
        patcher = build(WAN)
        plain = sample(patcher, WAN, steps=1)
        for streamed in self.orders(patcher, keys=keys):
            self.same(sample(streamed, WAN, steps=1), plain)
            self.same(sample(patcher, WAN, steps=1), plain)
            self.at_rest(streamed)

    def test_a_warning_is_said_though_the_model_ran_before(self) -> None:
        streamed = stream(WAN.build())
        first = sample(streamed, WAN, steps=1)
        with self.assertLogs("shoal", "WARNING") as said:
            self.same(sample(self.compiled(streamed), WAN, steps=1), first)
        self.assertIn("not compiled", " ".join(said.output))

    def test_comfyuis_own_node(self) -> None:
        patcher = WAN.build()
        plain = sample(patcher, WAN, steps=1)
        compiled = TorchCompileModel.execute(stream(patcher), "eager").result[0]
        self.same(sample(compiled, WAN, steps=1), plain)
        compiled = TorchCompileModel.execute(patcher, "eager").result[0]
        self.same(sample(stream(compiled), WAN, steps=1), plain)

    @unittest.skipIf(management.get_torch_device().type != "cuda", "inductor builds for a card")
    def test_inductor(self) -> None:
        """Its kernels round otherwise, as what is compiled differs where blocks are streamed."""
        patcher = build(WAN)
        plain = sample(patcher, WAN, steps=1)
        for streamed in self.orders(patcher, backend="inductor"):
            first = sample(streamed, WAN, steps=1)
            self.assertLess(float((first - plain).norm() / plain.norm()), 1e-2)
            self.same(sample(streamed, WAN, steps=1), first)
            self.at_rest(streamed)
        self.same(sample(patcher, WAN, steps=1), plain)

    def test_a_copy_that_was_made_after_the_node_is_refused(self) -> None:
        patcher = build(WAN)
        plain = sample(patcher, WAN, steps=1)
        streamed = stream(patcher)
        with self.assertRaisesRegex(ValueError, "copied after the shoal node"):
            sample(streamed.clone(force_deepcopy=True), WAN, steps=1)
        if DYNAMIC:
            with self.assertRaisesRegex(ValueError, "copied after the shoal node"):
                sample(TorchCompileModel.execute(streamed, "eager").result[0], WAN, steps=1)
        self.same(sample(streamed, WAN, steps=1), plain)

    def test_blocks_that_another_node_has_replaced_are_refused(self) -> None:
        patcher = build(WAN)
        plain = sample(patcher, WAN, steps=1)
        name = "diffusion_model.blocks.1"

        def replaced(before: Any) -> Any:
            after = before.clone()
            after.add_object_patch(name, torch.compile(before.get_model_object(name),
                                                       backend="eager"))
            return after

        for made in (lambda: replaced(stream(patcher)), lambda: stream(replaced(patcher))):
            with self.assertRaisesRegex(ValueError, f"{name}.*replaced"):
                sample(made(), WAN, steps=1)
            self.same(sample(patcher, WAN, steps=1), plain)
            self.same(sample(stream(patcher), WAN, steps=1), plain)


if __name__ == "__main__":
    sys.exit(main(__name__))
