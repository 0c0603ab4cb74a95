"""Runs inside ComfyUI's Python: what other nodes, failures and unloading do to a streamed model.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import random
import sys
import unittest
from typing import Any, Callable, Dict
from unittest import mock

from support import (DYNAMIC, FAMILIES, SEED, Case, Model, build, lora, main, management, report,
                     sample, stream, swap, torch, weights)

import comfy.hooks
import comfy.model_patcher
import comfy.samplers
import comfy.supported_models as supported
import psutil
import shoal
import shoal.torch
from comfy_extras.nodes_custom_sampler import Guider_DualModel
from comfy.patcher_extension import WrappersMP
from inside_knobs import small_lora

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
        self.expected = self.plain

    def goes_on(self) -> None:
        self.at_rest(self.streamed)
        self.same(sample(self.streamed, WAN), self.expected)
        self.same(sample(self.patcher, WAN), self.plain)
        self.untouched(self.patcher, self.before)

    def test_memory_is_out_within_a_block(self) -> None:
        for calls in (0, 2):
            inside = self.patcher.model.diffusion_model.blocks[3].ffn
            with mock.patch.object(inside, "forward", after(
                    calls, torch.OutOfMemoryError("within"), inside.forward)):
                with self.assertRaisesRegex(torch.OutOfMemoryError, "within"):
                    sample(self.streamed, WAN)
            self.at_rest(self.streamed)
            management.unload_all_models()
            self.goes_on()

    def test_memory_is_out_for_slots(self) -> None:
        for _ in range(2):  # before anything was read, and after
            with mock.patch.object(shoal.torch, "torch", NoMemory()):
                with self.assertRaisesRegex(torch.OutOfMemoryError, "slots"):
                    sample(self.streamed, WAN)
            management.unload_all_models()
            self.goes_on()

    def test_memory_is_out_while_a_lora_is_baked(self) -> None:
        """An interrupt too, which ComfyUI lets pass in the middle of a load."""
        baked = sample(lora(build(WAN), WAN, 1), WAN)
        for failure in (torch.OutOfMemoryError("baking"),
                        management.InterruptProcessingException("baking")):
            patched, capture = lora(self.streamed, WAN, 1), sys.modules["shoal_pack.capture"]
            with mock.patch.object(capture, "patched", after(9, failure, capture.patched)):
                with self.assertRaisesRegex(type(failure), "baking"):
                    sample(patched, WAN)
            for one in (self.streamed, self.patcher):
                self.same(sample(one, WAN), self.plain)
            self.untouched(self.patcher, self.before)
            self.same(sample(patched, WAN), baked)

    def test_a_store_that_fails(self) -> None:
        for status in (shoal.Status.MEMORY, shoal.Status.DEVICE):
            error = shoal.Error(status, "the store's own words")
            for name, calls in (("acquire", 0), ("acquire", 7), ("resume", 0)):
                inside = getattr(shoal.Store, name)
                with mock.patch.object(shoal.Store, name, after(calls, error, inside)):
                    with self.assertRaisesRegex(shoal.Error, "own words"):
                        sample(self.streamed, WAN)
                self.goes_on()

    def test_a_store_that_cannot_be_suspended_is_made_again(self) -> None:
        sample(self.streamed, WAN)
        store = self.streamed.get_attachment("shoal").host.store
        pinned, stats = management.TOTAL_PINNED_MEMORY, shoal.Store.stats.fget
        as_on_cards = mock.patch.object(shoal.Store, "stats", property(
            lambda one: dataclasses.replace(stats(one), pinned_bytes=1000)))
        error = shoal.Error(shoal.Status.DEVICE, "the copy had failed")
        with mock.patch.object(shoal.Store, "suspend", after(0, error, shoal.Store.suspend)), \
                as_on_cards, self.assertRaisesRegex(shoal.Error, "the copy had failed"):
            sample(self.streamed, WAN)
        self.assertTrue(store.closed)
        self.assertLessEqual(management.TOTAL_PINNED_MEMORY, pinned)  # ComfyUI may have it again
        self.assertIn("last run failed", report(self.streamed))
        self.goes_on()

    def test_a_failure_within_a_block_is_the_one_that_is_said(self) -> None:
        """Though the store fails too, as it does when a device is lost."""
        inside = self.patcher.model.diffusion_model.blocks[3].ffn
        error = shoal.Error(shoal.Status.DEVICE, "the device is lost")
        with mock.patch.object(inside, "forward", after(1, ValueError("first"), inside.forward)), \
                mock.patch.object(shoal.Store, "suspend", after(0, error, shoal.Store.suspend)), \
                self.assertLogs("shoal", "ERROR"), self.assertRaisesRegex(ValueError, "first"):
            sample(self.streamed, WAN)
        self.goes_on()


class FailingPatched(Failing):
    """With what is on the device beside slots: the matrices of LoRA that is not baked."""

    test_memory_is_out_for_slots = test_a_store_that_fails = None
    test_memory_is_out_while_a_lora_is_baked = None

    def setUp(self) -> None:
        super().setUp()
        self.streamed = small_lora(stream(self.patcher, host_format="storage"), WAN, 1)
        self.expected = sample(self.streamed, WAN)
        self.assertFalse(torch.equal(self.expected, self.plain))

    def goes_on(self) -> None:
        host = self.streamed.get_attachment("shoal").host
        self.assertIsNone(host._patches._near)
        super().goes_on()


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
        baked = sample(lora(build(WAN), WAN, 1), WAN)
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


class GGMLTensor(torch.Tensor):
    """As ComfyUI-GGUF has it: bytes of another format, that say another shape than their own."""

    def __new__(cls, data: torch.Tensor, **_: Any) -> "GGMLTensor":
        return super().__new__(cls, data)

    def __init__(self, data: torch.Tensor, *, tensor_type: Any, tensor_shape: Any) -> None:
        super().__init__()
        self.tensor_type, self.tensor_shape, self.patches = tensor_type, tensor_shape, []

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = super().to(*args, **kwargs)
        made.tensor_type = getattr(self, "tensor_type", None)
        made.tensor_shape = getattr(self, "tensor_shape", None)
        return made

    @property
    def shape(self) -> Any:
        return getattr(self, "tensor_shape", None) or self.size()


class GGUFModelPatcher(comfy.model_patcher.ModelPatcher):
    """As ComfyUI-GGUF has it: of an older ComfyUI, that returned no weights."""

    def patch_weight_to_device(self, key: str, device_to: Any = None,
                               inplace_update: bool = False) -> Any:
        return super().patch_weight_to_device(key, device_to, inplace_update)


class Weights(Trap):
    """What else than parameters weights can be, and what else than LoRA changes them."""

    def test_tensors_of_gguf_are_refused_by_name(self) -> None:
        for patched in (False, True):
            patcher = WAN.build()
            patcher.__class__ = GGUFModelPatcher
            module = patcher.model.diffusion_model.blocks[0].self_attn.q
            held = module.weight.data
            if patched:
                patcher = lora(patcher, WAN, 1)
            module.weight = torch.nn.Parameter(GGMLTensor(
                held.view(torch.uint8), tensor_type=8, tensor_shape=held.shape), False)
            streamed = stream(patcher)
            with self.assertRaisesRegex(ValueError, "blocks.0.self_attn.q.weight is a GGML"):
                sample(streamed, WAN)
            self.at_rest(streamed)
            self.assertIsInstance(module.weight, GGMLTensor)
            management.unload_all_models()

    def test_tensors_that_are_not_made_yet_are_zeros(self) -> None:
        patcher, other = build(WAN), build(WAN)
        for one, device in ((patcher, "cpu"), (other, "meta")):
            module = one.model.diffusion_model.blocks[1].ffn[0]
            module.bias = torch.nn.Parameter(
                torch.zeros(module.bias.shape, dtype=module.bias.dtype, device=device), False)
        self.same(sample(stream(other), WAN), sample(patcher, WAN))

    def test_weights_that_are_computed_from_others(self) -> None:
        patcher = WAN.build()
        for block in patcher.model.diffusion_model.blocks:
            torch.nn.utils.parametrizations.weight_norm(block.ffn[0])
        patcher.model.requires_grad_(False)
        patcher.size = 0
        before = weights(patcher)
        self.assertTrue(any("parametrizations" in key for key in before))
        plain = sample(patcher, WAN)
        streamed = stream(patcher)
        self.same(sample(streamed, WAN), plain)
        self.recovers(streamed, plain, patcher, before)

    def test_wrapped_weights(self) -> None:
        patcher = build(WAN)
        plain = sample(patcher, WAN)

        def wrapped(one: Any, key: str) -> Any:
            one = one.clone()
            one.add_weight_wrapper(f"diffusion_model.{key}", lambda weight: weight * 2)
            return one

        for made in (lambda: wrapped(stream(patcher), "blocks.2.ffn.0.weight"),
                     lambda: stream(wrapped(patcher, "blocks.2.ffn.0.weight"))):
            with self.assertRaisesRegex(ValueError, "another node wraps .*blocks.2.ffn.0.weight"):
                sample(made(), WAN)
            self.same(sample(patcher, WAN), plain)
        for key in ("head.head.weight", "blocks.0.ffn.0.weight"):  # of what is not streamed
            expected = sample(wrapped(patcher, key), WAN)
            self.same(sample(wrapped(stream(patcher, resident_blocks=1), key), WAN), expected)
            self.same(sample(stream(wrapped(patcher, key), resident_blocks=1), WAN), expected)
        self.same(sample(stream(patcher), WAN), plain)

    def test_lora_by_hooks_is_refused(self) -> None:
        patcher = build(WAN)
        before = weights(patcher)
        plain = sample(patcher, WAN)
        for key in ("blocks.2.ffn.0", "head.head"):
            name = f"diffusion_model.{key}"
            hooks = comfy.hooks.create_hook_lora(
                {f"{name}.diff": torch.ones_like(before[f"{name}.weight"])}, 1.0, 0.0)
            hooked = copy.copy(WAN)
            hooked.conditioning = lambda seed: comfy.hooks.set_hooks_for_conditioning(
                WAN.conditioning(seed), hooks)
            streamed = stream(patcher)
            if not DYNAMIC:
                self.assertFalse(torch.equal(sample(patcher, hooked), plain))
            with self.assertRaisesRegex(ValueError, "LoRA hooks"):
                sample(streamed, hooked)
            self.recovers(streamed, plain, patcher, before)


class Classes(Trap):
    def test_one_that_nobody_knows_is_streamed_by_its_list(self) -> None:
        family = Model(
            supported.PixArtAlpha,
            {"image_model": "pixart_alpha", "input_size": 8, "hidden_size": 96, "depth": 4,
             "num_heads": 2, "caption_channels": 64, "micro_condition": False,
             "pe_interpolation": 1.0},
            (1, 4, 40, 40), (1, 5, 64), ("blocks",), torch.float32)
        patcher = build(family)
        before = weights(patcher)
        plain = sample(patcher, family)
        streamed = stream(patcher)
        self.same(sample(streamed, family), plain)
        self.assertIn("PixArtMS on", report(streamed))
        self.assertIn("4 of 4 blocks streamed", report(streamed))
        self.recovers(streamed, plain, patcher, before, family)

    def test_a_unet_is_refused_by_name(self) -> None:
        family = Model(
            supported.SD15,
            {"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 32,
             "num_res_blocks": [1, 1], "channel_mult": [1, 2], "transformer_depth": [1, 1],
             "transformer_depth_middle": 1, "transformer_depth_output": [1, 1, 1, 1],
             "num_heads": 2, "context_dim": 64, "use_spatial_transformer": True,
             "use_linear_in_transformer": False, "adm_in_channels": None,
             "use_temporal_attention": False, "legacy": False},
            (1, 4, 8, 8), (1, 5, 64), (), torch.float32)
        patcher = build(family)
        plain = sample(patcher, family)
        for node in (stream, lambda one: swap(one, 2)):
            with self.assertRaisesRegex(ValueError, "UNetModel is a UNet"):
                node(patcher)
        self.same(sample(patcher, family), plain)


class Odd(Trap):
    """What no sampler does, but a node may."""

    setUp, goes_on = Failing.setUp, Failing.goes_on

    def test_gradients_through_streamed_blocks_are_refused(self) -> None:
        streamed = self.streamed.clone()

        def graded(executor: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.inference_mode(False), torch.enable_grad():
                return executor(x.clone().requires_grad_(), *args, **kwargs)
        streamed.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "test", graded)
        # Where ComfyUI made weights in inference mode, torch refuses before a block is reached.
        with self.assertRaisesRegex((ValueError, RuntimeError), "gradients|[Ii]nference tensors"):
            sample(streamed, WAN)
        self.goes_on()

    def test_training_is_refused(self) -> None:
        with mock.patch.object(management, "in_training", True):
            with self.assertRaisesRegex(ValueError, "trained"):
                sample(self.streamed, WAN)
        self.goes_on()

    def test_a_block_within_a_block_is_refused(self) -> None:
        block = self.patcher.model.diffusion_model.blocks[1]
        inside = self.patcher.model.diffusion_model.blocks[3].ffn
        own = inside.forward
        with mock.patch.object(inside, "forward", lambda *args: (block(*args), own(*args))[1]):
            with self.assertRaisesRegex(ValueError, "while another one runs"):
                sample(self.streamed, WAN)
        self.goes_on()

    def test_one_block_in_two_places_is_refused(self) -> None:
        patcher = build(WAN)
        blocks = patcher.model.diffusion_model.blocks
        blocks[1] = blocks[3]
        with self.assertRaisesRegex(ValueError, "blocks.3 is the same block as .*blocks.1"):
            stream(patcher)

    def test_inputs_that_only_a_link_brings_are_refused(self) -> None:
        for inputs, words in (({"vram_budget_gb": float("nan")}, "vram_budget_gb is nan"),
                              ({"ram_budget_gb": 1e18}, "ram_budget_gb is 1e"),
                              ({"resident_blocks": -1}, "resident_blocks is -1")):
            with self.subTest(inputs=inputs), self.assertRaisesRegex(ValueError, words):
                stream(self.patcher, **inputs)
        with self.assertRaisesRegex(ValueError, "blocks_to_swap is -1"):
            swap(self.patcher, -1)


class Long(Trap):
    """An afternoon: models, LoRA, nodes and interrupts in any order."""

    GENERATIONS = 50
    KEPT = 10  # runs by which everything has taken the memory that it keeps

    def setUp(self) -> None:
        stream(build(WAN))
        self.hosts = sys.modules["shoal_pack.host"]._HOSTS  # which comes with the first node
        gc.collect()
        self.before = len(self.hosts)
        self.pinned = management.TOTAL_PINNED_MEMORY
        self.random = random.Random(5)
        self.expected: Dict[Any, torch.Tensor] = {}
        self.patchers: Dict[str, Any] = {}
        for name in ("Wan", "FLUX"):
            family = FAMILIES[name]
            eager = build(family)
            for seed in (0, 1, 2):
                self.expected[name, seed] = sample(
                    lora(eager, family, seed) if seed else eager, family, steps=1)
            self.patchers[name] = build(family)
        management.unload_all_models()

    def generate(self, held: Dict[str, Any]) -> None:
        """`held` is what a workflow keeps from run to run: a node's output for a family."""
        name = self.random.choice(list(self.patchers))
        family, seed = FAMILIES[name], self.random.choice((0, 0, 1, 2))
        if name not in held or self.random.random() < 0.3:  # a node's inputs have changed
            held[name] = self.random.choice((
                lambda one: stream(one), lambda one: swap(one, 2),
                lambda one: stream(one, resident_blocks=1, buffer_mode="single"),
                lambda one: stream(one, host_format="storage"),
                lambda one: stream(one, wire="packed", pin_memory=False)))(self.patchers[name])
        used = lora(held[name], family, seed) if seed else held[name]
        chance = self.random.random()
        if chance < 0.15:
            def stop() -> None:
                raise management.InterruptProcessingException()
            with self.assertRaises(management.InterruptProcessingException):
                sample(used, family, steps=1, callback=at_step(0, stop))
            self.at_rest(used)
        elif chance < 0.25:
            management.unload_all_models()
        self.same(sample(used, family, steps=1), self.expected[name, seed])
        self.at_rest(used)

    def test_generations_of_every_kind(self) -> None:
        held: Dict[str, Any] = {}
        process, sizes, device = psutil.Process(), [], []
        for _ in range(self.GENERATIONS):
            self.generate(held)
            gc.collect()
            sizes.append(process.memory_info().rss)
            self.assertLessEqual(len(self.hosts) - self.before, len(held))
            if torch.cuda.is_available():
                management.unload_all_models()
                torch.cuda.empty_cache()
                device.append((torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]))
        # Dynamic mode's own goes up and down by as much, without any node.
        most = 48 << 20 if DYNAMIC else 6 << 20
        self.assertLess(max(sizes[-10:]) - max(sizes[:self.KEPT]), most)
        if device:
            self.assertLessEqual(device[-1][0], max(one[0] for one in device[:self.KEPT]))
            free = [one[1] >> 20 for one in device]
            self.assertGreater(min(free[-10:]), min(free[:self.KEPT]) - 32, free)
        held.clear()
        management.unload_all_models()
        gc.collect()
        self.assertEqual(len(self.hosts), self.before)
        self.assertEqual(management.TOTAL_PINNED_MEMORY, self.pinned)


if __name__ == "__main__":
    sys.exit(main(__name__))
