"""Runs inside ComfyUI's Python: real models of random weights, sampled with and without the nodes.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import unittest.mock
from typing import Any

from support import (DYNAMIC, FAMILIES, Case, Model, build, each_family, lora, main, management,
                     report, sample, stream, swap, torch, weights)

import psutil
from comfy.quant_ops import QuantizedTensor


class Streaming(Case):
    @each_family
    def test_latents_are_those_of_the_model_alone(self, family: Model) -> None:
        patcher = build(family)
        before = weights(patcher)
        plain = sample(patcher, family)
        for inputs in ({}, {"buffer_mode": "single"}, {"resident_blocks": 2},
                       {"resident_blocks": 2, "resident_mode": "spread"},
                       {"wire": "packed", "prefetch_slots": 2}, {"pin_memory": False}):
            streamed = stream(patcher, **inputs)
            for _ in range(2):
                self.same(sample(streamed, family), plain)
            self.assertIn("blocks streamed", report(streamed))
        self.same(sample(patcher, family), plain)
        self.untouched(patcher, before)

    @each_family
    def test_lora_is_that_of_the_model_alone(self, family: Model) -> None:
        patcher = build(family)
        before = weights(patcher)
        plain = sample(patcher, family)
        alone = build(family)
        baked = [sample(lora(alone, family, seed), family) for seed in (1, 2)]
        self.assertFalse(torch.equal(baked[0], plain))
        for seed in (1, 2):
            self.same(sample(stream(lora(patcher, family, seed)), family), baked[seed - 1])
            self.same(sample(lora(stream(patcher), family, seed), family), baked[seed - 1])
        streamed = stream(patcher)
        self.same(sample(streamed, family), plain)
        self.same(sample(lora(streamed, family, 1), family), baked[0])
        self.same(sample(streamed, family), plain)
        if not DYNAMIC:
            self.same(sample(lora(patcher, family, 2), family), baked[1])
        self.same(sample(patcher, family), plain)
        self.untouched(patcher, before)

    @each_family
    def test_blocks_run_on_what_was_shipped(self, family: Model) -> None:
        patcher = build(family)
        streamed = stream(patcher)
        first = sample(streamed, family)
        for one in family.lists:
            for value in getattr(patcher.model.diffusion_model, one).state_dict().values():
                value.fill_(float("nan"))
        self.same(sample(streamed, family), first)

    @each_family
    @torch.inference_mode()  # as ComfyUI's nodes run
    def test_quantised_weights_are_shipped_as_they_are(self, family: Model) -> None:
        patcher = family.build()
        whole = sum(value.nbytes for one in family.lists for value in
                    getattr(patcher.model.diffusion_model, one).parameters())
        quantised = 0
        for one in family.lists:
            for module in getattr(patcher.model.diffusion_model, one).modules():
                if isinstance(module, torch.nn.Linear):
                    module.weight = torch.nn.Parameter(QuantizedTensor.from_float(
                        module.weight.data, "TensorCoreFP8Layout", scale="recalculate"),
                        requires_grad=False)
                    quantised += 1
        self.assertGreater(quantised, 4)
        plain = sample(patcher, family)
        streamed = stream(patcher)
        for _ in range(2):
            self.same(sample(streamed, family), plain)
        stats = streamed.get_attachment("shoal").host.store.stats
        self.assertLess(stats.weight_bytes, whole)

    @each_family
    def test_another_compute_type_is_cast_to_as_ever(self, family: Model) -> None:
        # One each: ComfyUI's load leaves the layers that it has seen casting.
        patcher, other = build(family), build(family)
        for one in (patcher, other):
            one.set_model_compute_dtype(
                torch.float32 if family.dtype == torch.bfloat16 else torch.bfloat16)
        plain = sample(patcher, family)
        self.same(sample(stream(other), family), plain)
        self.same(sample(other, family), plain)

    @each_family
    def test_clones_share_the_host_tier(self, family: Model) -> None:
        streamed = stream(build(family))
        clone = streamed.clone()
        first, second = sample(streamed, family), sample(clone, family)
        self.same(first, second)
        hosts = [one.get_attachment("shoal").host for one in (streamed, clone)]
        self.assertIs(hosts[0], hosts[1])
        self.assertEqual(hosts[0].store.stats.device_bytes, 0)

    def test_comfyui_takes_no_clone_for_another(self) -> None:
        """It loads a model again only if patches_uuid differs, and a streamed one lacks blocks."""
        patcher = build(FAMILIES["Wan"])
        one, again, other = (stream(patcher, **inputs).patches_uuid for inputs in (
            {}, {"prefetch_slots": 2}, {"resident_blocks": 1}))
        self.assertEqual(one, again)
        self.assertEqual(len({one, other, patcher.patches_uuid}), 3)

    def test_an_interrupt_leaves_nothing_behind(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        before = weights(patcher)
        plain = sample(patcher, family)
        streamed = stream(patcher)

        def interrupt(step: int, *_: Any) -> None:
            if step == 1:
                raise management.InterruptProcessingException()

        block = patcher.model.diffusion_model.blocks[2]
        inside = block.ffn.forward
        for failing in (interrupt, None):
            if failing is None:  # within a block
                calls = iter(range(100))

                def break_off(*args: Any, **kwargs: Any) -> Any:
                    if next(calls) == 1:
                        raise management.InterruptProcessingException()
                    return inside(*args, **kwargs)
                block.ffn.forward = break_off
            with self.assertRaises(management.InterruptProcessingException):
                sample(streamed, family, callback=failing)
            if failing is None:
                del block.ffn.forward
            self.untouched(patcher, before)
            host = streamed.get_attachment("shoal").host
            self.assertEqual(host.store.stats.device_bytes, 0)
            self.same(sample(streamed, family), plain)

    def test_memory_is_gone_with_the_last_patcher(self) -> None:
        hosts = sys.modules["shoal_pack.host"]._HOSTS
        gc.collect()
        before = len(hosts)
        family = FAMILIES["Wan"]
        streamed = stream(build(family))
        sample(streamed, family)
        self.assertEqual(len(hosts), before + 1)
        del streamed
        management.unload_all_models()
        gc.collect()
        self.assertEqual(len(hosts), before)

    def test_runs_do_not_grow(self) -> None:
        family = FAMILIES["MiniTrainDIT"]
        patcher = build(family)
        streamed = stream(patcher)
        process = psutil.Process()
        first = sample(streamed, family, steps=1)
        sizes = []
        for run in range(40):
            self.same(sample(streamed, family, steps=1), first)
            if run % 4 == 0:  # the node is run again, as a changed workflow does
                streamed = stream(patcher)
            gc.collect()
            sizes.append(process.memory_info().rss)
        self.assertLess(min(sizes[30:]) - min(sizes[10:20]), 2 << 20)

    def test_less_memory_takes_fewer_slots(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        plain = sample(patcher, family)
        block = max(stream(patcher).get_attachment("shoal").session.sizes)
        for slots, words in ((2.5, " 2 slots"), (1.5, " 1 slot")):
            budget = {"vram_budget_gb": slots * block / (1 << 30)}
            streamed = stream(patcher, auto_config=True, **budget)
            self.same(sample(streamed, family), plain)
            self.assertIn(words, report(streamed))
            with self.assertRaisesRegex(ValueError, "too small"):
                sample(stream(patcher, **budget), family)

    def test_what_ram_does_not_hold_is_read_in_every_step(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        plain = sample(patcher, family)
        block = max(stream(patcher).get_attachment("shoal").session.sizes)
        budget = {"ram_budget_gb": 4.2 * block / (1 << 30)}
        with self.assertRaisesRegex(ValueError, "raise it, or choose"):
            sample(stream(patcher, **budget), family)
        streamed = stream(patcher, tiering="ram_disk", **budget)
        self.same(sample(streamed, family), plain)
        stats = streamed.get_attachment("shoal").host.store.stats
        self.assertGreater(stats.disk_blocks, 0)
        self.assertGreater(stats.read_bytes, 2 * stats.weight_bytes // 5)
        with self.assertRaisesRegex(ValueError, "its file has it as it was"):
            sample(stream(lora(patcher, family, 1), tiering="ram_disk"), family)


class Swapping(Case):
    @each_family
    def test_latents_are_those_of_the_model_alone(self, family: Model) -> None:
        patcher = build(family)
        plain = sample(patcher, family)
        for blocks in (1, 3, 1000):
            self.same(sample(swap(patcher, blocks), family), plain)
        self.assertIs(swap(patcher, 0), patcher)

    def test_more_are_swapped_if_the_rest_does_not_fit(self) -> None:
        family = FAMILIES["Wan"]
        baked = sample(lora(build(family), family, 1), family)
        patcher = lora(build(family), family, 1)
        before = weights(patcher)
        swapped = swap(patcher, 1)
        self.same(sample(swapped, family), baked)
        session = swapped.get_attachment("shoal").session
        ring = 2 * max(session.sizes)  # which is as many as pay, of so few
        rest = management.module_size(patcher.model) - sum(session.sizes)
        session.grow(swapped, rest + sum(session.sizes[3:]) + ring)
        self.assertEqual(len(session.places), 3)
        # What ComfyUI has patched of them is undone, and baked into what is shipped.
        self.same(sample(swapped, family), baked)
        for key, value in patcher.model.diffusion_model.blocks[2].state_dict().items():
            self.assertTrue(torch.equal(value, before[f"diffusion_model.blocks.2.{key}"]), key)


class Choosing(Case):
    """What auto_config does on a card, whose memory is the test's to say."""

    def setUp(self) -> None:
        streaming = importlib.import_module("shoal_pack.streaming")
        self.room = 0.0
        # Tiny models have no room for the margin.
        for module, name, fake in ((streaming, "_limited", lambda _: True),
                                   (streaming, "_room", lambda *_: self.room),
                                   (streaming, "MARGIN_BYTES", 0)):
            patched = unittest.mock.patch.object(module, name, fake)
            patched.start()
            self.addCleanup(patched.stop)

    @each_family
    def test_as_few_blocks_are_streamed_as_do_not_fit(self, family: Model) -> None:
        patcher = build(family)
        plain = sample(patcher, family)
        streamed = stream(patcher, auto_config=True)
        session = streamed.get_attachment("shoal").session
        whole, count = management.module_size(patcher.model), len(session.sizes)
        self.room = whole
        self.same(sample(streamed, family), plain)
        self.assertEqual(session.places, ())
        self.assertIsNone(streamed.get_attachment("shoal").host)
        name = streamed.patches_uuid
        most = count - 1 if len(set(session.sizes)) == 1 else count
        for self.room, least, most in ((whole - 1, 3, most), (whole, 3, most), (1.0, count, count)):
            self.same(sample(streamed, family), plain)
            self.assertTrue(least <= len(session.places) <= most, len(session.places))
            self.assertNotEqual(streamed.patches_uuid, name)
        self.same(sample(patcher, family), plain)
        again = stream(patcher, auto_config=True)  # a workflow that was changed begins anew
        self.room = whole
        self.same(sample(again, family), plain)

    def test_a_card_that_holds_no_ring_gets_a_smaller_one(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        plain = sample(patcher, family)
        streamed = stream(patcher, auto_config=True)
        session = streamed.get_attachment("shoal").session
        other = management.module_size(patcher.model) - sum(session.sizes)
        for slots, words in ((2.5, " 2 slots"), (1.5, " 1 slot")):
            self.room = other + slots * max(session.sizes)
            self.same(sample(streamed, family), plain)
            self.assertIn(words, report(streamed))

    def test_a_little_less_memory_captures_nothing_anew(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        streamed = stream(patcher, auto_config=True, wire="raw")
        session = streamed.get_attachment("shoal").session
        block = max(session.sizes)
        streaming = importlib.import_module("shoal_pack.streaming")
        # A ring of 2, and 2 that stay.
        self.room = management.module_size(patcher.model) - sum(session.sizes) + 4 * block
        with unittest.mock.patch.object(streaming, "MARGIN_BYTES", block // 2):
            for less, count in ((0, 3), (block // 4, 3), (block, 4)):
                self.room -= less
                sample(streamed, family, steps=1)
                self.assertEqual(len(session.places), count)

    def test_room_is_left_for_what_runs_at_once(self) -> None:
        """Both conditionings, unless the scale leaves one of them out."""
        family = FAMILIES["Wan"]
        streamed, shapes, self.room = stream(build(family), auto_config=True), [], 1e12
        streaming = importlib.import_module("shoal_pack.streaming")
        with unittest.mock.patch.object(
                streaming, "_room", lambda _, shape: shapes.append(shape[0]) or 1e12):
            sample(streamed, family)
            sample(streamed, family, cfg=1.0)
        self.assertEqual(shapes, [2, 1])

    def test_a_budget_is_for_all_blocks(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        self.room = 1e12
        block = max(stream(patcher, auto_config=True).get_attachment("shoal").session.sizes)
        streamed = stream(patcher, auto_config=True, vram_budget_gb=5.5 * block / (1 << 30))
        sample(streamed, family)
        self.assertEqual(len(streamed.get_attachment("shoal").session.places), 0)
        streamed = stream(patcher, auto_config=True, wire="raw",
                          vram_budget_gb=4.5 * block / (1 << 30))
        sample(streamed, family)
        # A ring of 2, and 2 stay.
        self.assertEqual(len(streamed.get_attachment("shoal").session.places), 3)


class Refusals(Case):
    def test_what_cannot_be_done_is_said(self) -> None:
        patcher = build(FAMILIES["Wan"])
        refused = [({"sage_pv_fp16": True}, "sage_attention"),
                   ({"disk_cache": "/x"}, "ram_disk"),
                   ({"resident_blocks": 5}, "nothing would be streamed"),
                   ({"vram_budget_gb": 1e-6}, "too small")]
        if importlib.util.find_spec("sageattention") is None:
            refused.append(({"sage_attention": True}, "sageattention"))
        for inputs, words in refused:
            with self.subTest(inputs=inputs), self.assertRaisesRegex(ValueError, words):
                streamed = stream(patcher, **inputs)
                sample(streamed, FAMILIES["Wan"])
        with self.assertRaisesRegex(ValueError, "already runs"):
            swap(swap(patcher, 2), 2)
        self.assertIs(stream(patcher, enabled=False), patcher)
        self.assertIn("does not run through shoal", report(patcher))
        self.assertIn("has not run", report(stream(patcher)))

    def test_a_strange_tensor_is_refused_by_its_type(self) -> None:
        class Strange(torch.Tensor):
            pass
        patcher = build(FAMILIES["Wan"])
        module = patcher.model.diffusion_model.blocks[0].ffn[0]
        module._parameters["weight"] = module.weight.data.as_subclass(Strange)
        with self.assertRaisesRegex(ValueError, "Strange"):
            sample(stream(patcher), FAMILIES["Wan"])


if __name__ == "__main__":
    sys.exit(main(__name__))
