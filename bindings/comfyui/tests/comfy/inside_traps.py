"""Runs inside ComfyUI's Python: what other nodes, failures and unloading do to a streamed model.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import unittest
from typing import Any, Callable, Dict, Iterator
from unittest import mock

from support import (DYNAMIC, FAMILIES, SEED, Case, Model, build, lora, main, management, report,
                     sample, stream, swap, torch, weights)

import comfy.samplers
import shoal
import shoal.torch
from comfy_api.torch_helpers import set_torch_compile_wrapper
from comfy_extras.nodes_custom_sampler import Guider_DualModel
from comfy_extras.nodes_torch_compile import TorchCompileModel

WAN = FAMILIES["Wan"]


def guided(positive: Any, negative: Any) -> torch.Tensor:
    """What support.sample samples, with a model for each of the prompts."""
    guider = Guider_DualModel(positive, negative)
    guider.set_conds(WAN.conditioning(1), WAN.conditioning(2))
    guider.set_cfg(2.0)
    sampler = comfy.samplers.KSampler(positive, 3, positive.load_device, "euler", "simple", 1.0)
    noise = torch.randn(WAN.latent, generator=torch.Generator().manual_seed(SEED))
    with torch.inference_mode():
        return guider.sample(noise, torch.zeros(WAN.latent), comfy.samplers.sampler_object("euler"),
                             sampler.sigmas, disable_pbar=True, seed=SEED).cpu()


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


class Captured(Trap):
    """CUDA graphs."""

    def test_a_capture_is_refused(self) -> None:
        patcher = build(WAN)
        before = weights(patcher)
        plain = sample(patcher, WAN)
        streamed = stream(patcher)
        with mock.patch.multiple(torch.cuda, is_available=lambda: True,
                                 is_current_stream_capturing=lambda: True):
            with self.assertRaisesRegex(RuntimeError, "cannot be captured in a CUDA graph"):
                sample(streamed, WAN)
        self.recovers(streamed, plain, patcher, before)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a card")
    def test_a_real_capture_is_refused(self) -> None:
        patcher = build(WAN)
        before = weights(patcher)
        plain = sample(patcher, WAN)
        streamed = stream(patcher)
        self.same(sample(streamed, WAN), plain)  # all is pinned, which a capture would forbid
        management.load_models_gpu([streamed])
        streamed.pre_run()
        try:
            graph = torch.cuda.CUDAGraph()
            with self.assertRaisesRegex(RuntimeError, "cannot be captured in a CUDA graph"):
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    patcher.model.diffusion_model.blocks[0].forward()
        finally:
            streamed.cleanup()
        self.recovers(streamed, plain, patcher, before)


def after(calls: int, failure: BaseException, inside: Any) -> Any:
    """A function that fails when it is called once more than so many times."""
    count = iter(range(1 << 30))

    def run(*args: Any, **kwargs: Any) -> Any:
        if next(count) == calls:
            raise failure
        return inside(*args, **kwargs)
    return run


class NoMemory:
    """torch, with a device that has no room for slots."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("slots")


class Failing(Trap):
    def setUp(self) -> None:
        self.patcher = build(WAN)
        self.before = weights(self.patcher)
        self.plain = sample(self.patcher, WAN)
        self.streamed = stream(self.patcher)

    def test_memory_is_out_within_a_block(self) -> None:
        for calls in (0, 2):
            inside = self.patcher.model.diffusion_model.blocks[3].ffn
            with mock.patch.object(inside, "forward", after(
                    calls, torch.OutOfMemoryError("within"), inside.forward)):
                with self.assertRaisesRegex(torch.OutOfMemoryError, "within"):
                    sample(self.streamed, WAN)
            self.at_rest(self.streamed)
            management.unload_all_models()
            self.recovers(self.streamed, self.plain, self.patcher, self.before)

    def test_memory_is_out_for_slots(self) -> None:
        for _ in range(2):  # before anything was read, and after
            with mock.patch.object(shoal.torch, "torch", NoMemory()):
                with self.assertRaisesRegex(torch.OutOfMemoryError, "slots"):
                    sample(self.streamed, WAN)
            management.unload_all_models()
            self.recovers(self.streamed, self.plain, self.patcher, self.before)

    def test_a_store_that_fails(self) -> None:
        for status in (shoal.Status.MEMORY, shoal.Status.DEVICE, shoal.Status.IO):
            error = shoal.Error(status, "the store's own words")
            for name, calls in (("acquire", 0), ("acquire", 7), ("resume", 0)):
                inside = getattr(shoal.Store, name)
                with mock.patch.object(shoal.Store, name, after(calls, error, inside)):
                    with self.assertRaisesRegex(shoal.Error, "own words"):
                        sample(self.streamed, WAN)
                self.recovers(self.streamed, self.plain, self.patcher, self.before)

    def test_a_store_that_cannot_be_suspended_is_made_again(self) -> None:
        sample(self.streamed, WAN)
        store = self.streamed.get_attachment("shoal").host.store
        error = shoal.Error(shoal.Status.DEVICE, "the copy had failed")
        with mock.patch.object(shoal.Store, "suspend", after(0, error, shoal.Store.suspend)):
            with self.assertRaisesRegex(shoal.Error, "the copy had failed"):
                sample(self.streamed, WAN)
        self.assertTrue(store.closed)
        self.assertIn("last run failed", report(self.streamed))
        self.recovers(self.streamed, self.plain, self.patcher, self.before)

    def test_a_failure_within_a_block_is_the_one_that_is_said(self) -> None:
        """Though the store fails too, as it does when a device is lost."""
        inside = self.patcher.model.diffusion_model.blocks[3].ffn
        error = shoal.Error(shoal.Status.DEVICE, "the device is lost")
        with mock.patch.object(inside, "forward", after(1, ValueError("first"), inside.forward)), \
                mock.patch.object(shoal.Store, "suspend", after(0, error, shoal.Store.suspend)), \
                self.assertLogs("shoal", "ERROR"), self.assertRaisesRegex(ValueError, "first"):
            sample(self.streamed, WAN)
        self.recovers(self.streamed, self.plain, self.patcher, self.before)


def at_step(step: int, call: Callable[[], Any]) -> Callable[..., None]:
    def run(now: int, *_: Any) -> None:
        if now == step:
            call()
    return run


class Unloading(Trap):
    def test_between_runs(self) -> None:
        patcher = build(WAN)
        before = weights(patcher)
        plain = sample(patcher, WAN)
        streamed = stream(patcher)
        device = streamed.load_device
        for unload in (management.unload_all_models,
                       lambda: management.free_memory(1e30, device),
                       lambda: management.free_memory(1 << 20, device),
                       lambda: streamed.detach(unpatch_all=False), streamed.detach,
                       lambda: management.unload_model_and_clones(streamed)):
            self.same(sample(streamed, WAN), plain)
            unload()
            self.recovers(streamed, plain, patcher, before)

    def test_during_a_run(self) -> None:
        """As a node does that decodes, or loads something else, between two steps."""
        patcher, other = build(WAN), build(FAMILIES["FLUX"])
        before = weights(patcher)
        plain = sample(patcher, WAN)
        streamed = stream(patcher)

        def again() -> None:
            management.unload_all_models()
            management.load_models_gpu([streamed])

        for call in (lambda: streamed.detach(unpatch_all=False) and again(), again,
                     lambda: management.load_models_gpu([streamed]),
                     lambda: management.load_models_gpu([streamed, other])):
            self.same(sample(streamed, WAN, callback=at_step(0, call)), plain)
            self.recovers(streamed, plain, patcher, before)
        with self.assertRaisesRegex(RuntimeError, "outside of sampling"):
            management.load_models_gpu([streamed])
            patcher.model.diffusion_model.blocks[0](torch.zeros(1))

    def test_models_take_turns(self) -> None:
        families = [FAMILIES[name] for name in ("Wan", "FLUX", "LTX-Video")]
        patchers = [build(family) for family in families]
        plain = [sample(patcher, family, 2) for patcher, family in zip(patchers, families)]
        streamed = [stream(patchers[0]), patchers[1], swap(patchers[2], 3)]
        for _ in range(5):
            for one, family, expected in zip(streamed, families, plain):
                self.same(sample(one, family, 2), expected)
            for one in (streamed[0], streamed[2]):
                self.at_rest(one)

    def test_two_nodes_and_none_take_turns_on_one_model(self) -> None:
        patcher = build(WAN)
        before = weights(patcher)
        plain = sample(patcher, WAN)
        baked = sample(lora(WAN.build(), WAN, 1), WAN)
        one, two = stream(patcher), stream(patcher, resident_blocks=2, buffer_mode="single")
        turns = [(one, plain), (patcher, plain), (two, plain), (one, plain), (two, plain),
                 (swap(patcher, 2), plain), (lora(two, WAN, 1), baked), (one, plain),
                 (lora(one, WAN, 1), baked), (two, plain), (patcher, plain)]
        for _ in range(2):
            for turn, expected in turns:
                self.same(sample(turn, WAN), expected)
                if turn is not patcher:
                    self.at_rest(turn)
        self.untouched(patcher, before)

    def test_two_models_in_one_guider(self) -> None:
        """The positive prompt by one model, the negative one by another."""
        patcher = build(WAN)
        plain = guided(patcher, patcher)
        other = build(WAN)
        for positive, negative in ((stream(patcher), stream(other)),
                                   (stream(patcher), stream(patcher, resident_blocks=2)),
                                   (stream(patcher), patcher), (patcher, stream(patcher)),
                                   (stream(patcher), stream(patcher))):
            for _ in range(2):
                self.same(guided(positive, negative), plain)
            for one in (positive, negative):
                if one is not patcher:
                    self.at_rest(one)
        one = stream(patcher)
        self.same(guided(one, one), plain)
        self.same(guided(one.clone(), one), plain)
        self.at_rest(one)

    def test_patchers_that_are_gone(self) -> None:
        patcher = build(WAN)
        plain = sample(patcher, WAN)
        streamed = stream(patcher)
        clone = streamed.clone()
        self.same(sample(clone, WAN), plain)
        last = clone.clone()
        del streamed, clone
        gc.collect()
        self.same(sample(last, WAN), plain)
        # One that dies while another runs detaches, and takes nothing from it.
        dying = [last.clone()]
        self.same(sample(dying[0], WAN), plain)

        def die() -> None:
            dying.clear()
            gc.collect()
        host = last.get_attachment("shoal").session
        self.same(sample(last, WAN, callback=at_step(1, die)), plain)
        self.assertFalse(dying)
        self.assertIsNone(host._host)


if __name__ == "__main__":
    sys.exit(main(__name__))
