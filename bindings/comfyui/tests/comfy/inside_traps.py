"""Runs inside ComfyUI's Python: what other nodes, failures and unloading do to a streamed model.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import contextlib
import sys
import unittest
from typing import Any, Dict, Iterator

from support import DYNAMIC, FAMILIES, Case, Model, build, main, sample, stream, torch, weights

from comfy_api.torch_helpers import set_torch_compile_wrapper
from comfy_extras.nodes_torch_compile import TorchCompileModel

WAN = FAMILIES["Wan"]


class Trap(Case):
    def at_rest(self, streamed: Any) -> None:
        """Nothing is left of a run on the device."""
        binding = streamed.get_attachment("shoal")
        self.assertIsNone(binding.session._host)
        if binding.host is not None and not binding.host.store.closed:
            self.assertEqual(binding.host.store.stats.device_bytes, 0)

    def recovers(self, streamed: Any, plain: torch.Tensor, patcher: Any,
                 before: Dict[str, torch.Tensor], family: Model = WAN) -> None:
        """After a run that failed: nothing is left of it, and the next ones are right."""
        self.at_rest(streamed)
        self.untouched(patcher, before)
        self.same(sample(streamed, family), plain)
        self.same(sample(patcher, family), plain)


@unittest.skipIf(DYNAMIC, "ComfyUI's node copies a model of dynamic VRAM, which is refused")
class Compiled(Trap):
    def setUp(self) -> None:
        torch.compiler.reset()
        self.addCleanup(torch.compiler.reset)

    def compiled(self, patcher: Any, **options: Any) -> Any:
        patcher = patcher.clone()
        set_torch_compile_wrapper(patcher, backend="eager", **options)
        return patcher

    @contextlib.contextmanager
    def few_graphs(self, most: int) -> Iterator[None]:
        counters = torch._dynamo.utils.counters
        counters.clear()
        yield
        self.assertLessEqual(counters["stats"]["unique_graphs"], most)
        self.assertFalse([one for one in counters["graph_break"] if "recompile_limit" in one])

    def test_blocks_run_as_they_are_and_the_rest_is_compiled(self) -> None:
        patcher = build(WAN)
        before = weights(patcher)
        plain = sample(patcher, WAN, steps=2)
        for made in (lambda: self.compiled(stream(patcher)),
                     lambda: stream(self.compiled(patcher))):
            torch.compiler.reset()
            streamed = made()
            with self.assertLogs("shoal", "WARNING") as said, self.few_graphs(40):
                first = sample(streamed, WAN, steps=2)
            self.assertIn("not compiled", " ".join(said.output))
            self.same(first, plain)
            with self.few_graphs(0):  # nothing is compiled again in later runs
                self.same(sample(streamed, WAN, steps=2), plain)
            self.at_rest(streamed)
            self.same(sample(patcher, WAN, steps=2), plain)
            self.untouched(patcher, before)

    def test_blocks_compiled_one_by_one_run_as_they_are(self) -> None:
        keys = [f"diffusion_model.blocks.{at}" for at in range(5)]
        patcher = build(WAN)
        plain = sample(patcher, WAN, steps=2)
        for made in (lambda: self.compiled(stream(patcher), keys=keys),
                     lambda: stream(self.compiled(patcher, keys=keys))):
            torch.compiler.reset()
            streamed = made()
            with self.few_graphs(20):
                self.same(sample(streamed, WAN, steps=2), plain)
            self.same(sample(patcher, WAN, steps=2), plain)
            self.at_rest(streamed)

    def test_a_warning_is_said_though_the_model_ran_before(self) -> None:
        streamed = stream(build(WAN))
        first = sample(streamed, WAN, steps=1)
        with self.assertLogs("shoal", "WARNING") as said:
            self.same(sample(self.compiled(streamed), WAN, steps=1), first)
        self.assertIn("not compiled", " ".join(said.output))

    def test_comfyuis_own_node(self) -> None:
        patcher = build(WAN)
        plain = sample(patcher, WAN, steps=1)
        compiled = TorchCompileModel.execute(stream(patcher), "eager").result[0]
        self.same(sample(compiled, WAN, steps=1), plain)
        compiled = TorchCompileModel.execute(patcher, "eager").result[0]
        self.same(sample(stream(compiled), WAN, steps=1), plain)

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
