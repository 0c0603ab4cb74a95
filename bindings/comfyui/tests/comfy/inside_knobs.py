"""host_format and disk_cache of Shoal Layer Streaming, in a real ComfyUI.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import re
import resource
import sys
import tempfile
import threading
import unittest.mock
from typing import Any, Callable, Dict

import support
from support import (DYNAMIC, FAMILIES, Case, Model, blocks_of, build, each_family, lora, main,
                     management, part, report, stream, torch, weights)

from comfy.memory_management import TensorFileSlice
from comfy.quant_ops import QuantizedTensor
from comfy.weight_adapter import LoRAAdapter

sample = functools.partial(support.sample, steps=2)
GIB = 1 << 30
RANK = 2


def small_lora(patcher: Any, family: Model, seed: int, strength: float = 0.7) -> Any:
    """Low-rank matrices on every weight matrix, as LoRA files have them."""
    patched = patcher.clone()
    generator = torch.Generator().manual_seed(seed)
    patches = {}
    for key, value in patcher.model.state_dict().items():
        if key.endswith(".weight") and value.ndim == 2:
            up = torch.randn(value.shape[0], RANK, generator=generator) * 0.2
            down = torch.randn(RANK, value.shape[1], generator=generator) * 0.2
            patches[key] = LoRAAdapter({key}, (up, down, 1.0, None, None, None))
    assert patched.add_patches(patches, strength)
    return patched


def host_of(patcher: Any) -> Any:
    return patcher.get_attachment("shoal").host


def build_fp8(family: Model) -> Any:
    """Weights in unscaled fp8, cast by each layer to the type that it computes in."""
    return family.build(DYNAMIC, torch.float8_e4m3fn)


def build_quantised(family: Model) -> Any:
    """As a checkpoint with comfy_quant entries is loaded: scaled fp8 in QuantizedTensors."""
    plain = family.build()
    state: Dict[str, torch.Tensor] = {}
    inner = plain.model.diffusion_model
    linear = {name for name, module in inner.named_modules()
              if isinstance(module, torch.nn.Linear) and name.startswith(family.lists)}
    for key, value in inner.state_dict().items():
        layer, _, name = key.rpartition(".")
        if name != "weight" or layer not in linear:
            state[key] = value
            continue
        scale = value.abs().amax().float() / 448
        state[key] = (value.float() / scale).to(torch.float8_e4m3fn)
        state[f"{layer}.weight_scale"] = scale
        conf = json.dumps({"format": "float8_e4m3fn"}).encode()
        state[f"{layer}.comfy_quant"] = torch.tensor(list(conf), dtype=torch.uint8)
    return family.build(DYNAMIC, state=state)


class HostFormat(Case):
    def formats_agree(self, family: Model, make: Callable[[Model], Any]) -> None:
        """With and without LoRA: in both formats, and as a model that was patched before."""
        patcher, eager = make(family), make(family)
        before = weights(patcher)
        # Dynamic mode quantises small layers anew, which real models do not have.
        alone = not (DYNAMIC and make is build_quantised)
        plain = sample(patcher if alone else stream(patcher), family)
        for inputs in ({}, {"buffer_mode": "single"}, {"wire": "packed"}):
            streamed = stream(patcher, host_format="storage", **inputs)
            for _ in range(2):
                self.same(sample(streamed, family), plain)
        for patch in (small_lora, lora):
            baked = sample(stream(patch(patcher, family, 1), host_format="compute"), family)
            self.assertFalse(torch.equal(baked, plain))
            if not DYNAMIC:
                self.same(sample(patch(eager, family, 1), family), baked)
            self.same(sample(stream(patch(patcher, family, 1), host_format="storage"), family),
                      baked)
            self.same(sample(patch(streamed, family, 1), family), baked)
            self.same(sample(streamed, family), plain)
        self.untouched(patcher, before)

    @each_family
    def test_both_are_the_same_bits(self, family: Model) -> None:
        self.formats_agree(family, build)

    @each_family
    def test_both_are_the_same_bits_in_unscaled_fp8(self, family: Model) -> None:
        self.formats_agree(family, build_fp8)

    @each_family
    @torch.inference_mode()  # as ComfyUI's nodes run
    def test_both_are_the_same_bits_of_quantised_weights(self, family: Model) -> None:
        if management.get_torch_device().type == "cuda" and family.dtype == torch.float32:
            self.skipTest("a card's FP8 products do not give FP32")
        kinds = {type(value) for block in blocks_of(build_quantised(family), family)
                 for value in block.parameters()}
        self.assertTrue(any(issubclass(kind, QuantizedTensor) for kind in kinds))
        self.formats_agree(family, build_quantised)

    @each_family
    def test_weights_wait_in_the_type_of_the_checkpoint(self, family: Model) -> None:
        """Where that is another than the model's."""
        other = torch.float16 if family.dtype == torch.bfloat16 else torch.bfloat16
        made = family.build()
        state = {key: value.to(other) for key, value in
                 made.model.diffusion_model.state_dict().items()}
        before = family.build(state={key: value.to(family.dtype) for key, value in state.items()})
        plain = sample(before, family)
        patched = sample(small_lora(before, family, 1), family)
        for block, name in zip(blocks_of(made, family), [
                f"{one}.{at}" for one in family.lists
                for at in range(len(getattr(made.model.diffusion_model, one)))]):
            block.load_state_dict({key[len(name) + 1:]: value for key, value in state.items()
                                   if key.startswith(name + ".")}, assign=True)
        made.model.diffusion_model.load_state_dict(
            {key: value.to(family.dtype) for key, value in state.items()
             if not key.startswith(tuple(one + "." for one in family.lists))}, strict=False)
        made.model.diffusion_model.requires_grad_(False)
        sizes = {}
        for form in ("storage", "compute"):
            streamed = stream(made, host_format=form)
            self.same(sample(streamed, family), plain)
            sizes[form] = host_of(streamed).store.stats.weight_bytes
            found = sample(small_lora(streamed, family, 1), family)
            if form == "storage":
                patched = found
            self.same(found, patched)
        ratio = other.itemsize / family.dtype.itemsize
        self.assertEqual(sizes["storage"], sizes["compute"] * ratio)

    @each_family
    def test_another_lora_captures_nothing_again(self, family: Model) -> None:
        capture = part("capture").Capture
        streamed = stream(build(family), host_format="storage")
        with unittest.mock.patch.object(capture, "block", autospec=True,
                                        side_effect=capture.block) as captured:
            plain = sample(streamed, family)
            count = captured.call_count
            self.assertGreater(count, 3)
            pictures = [sample(small_lora(streamed, family, seed), family) for seed in (1, 2)]
            self.same(sample(streamed, family), plain)
            self.assertEqual(captured.call_count, count)
            self.assertFalse(torch.equal(*pictures))
            # What is as large as the weights is baked into them instead.
            sample(lora(streamed, family, 1), family)
            self.assertEqual(captured.call_count, 2 * count)

    def test_patches_are_on_the_device_while_it_runs_only(self) -> None:
        """Or not at all, beyond the budget: then they are baked."""
        family = FAMILIES["Wan"]
        patcher = build(family)
        sizes = stream(patcher).get_attachment("shoal").session.sizes
        streamed = small_lora(stream(patcher, host_format="storage"), family, 1)
        held = []
        baked = sample(streamed, family, callback=lambda *_: held.append(
            len(host_of(streamed)._patches._near)))
        self.assertGreater(min(held), 20)
        self.assertIsNone(host_of(streamed)._patches._near)
        for slots, count in ((3.5, min(held)), (3.001, 0)):
            tight = small_lora(stream(patcher, host_format="storage",
                                      vram_budget_gb=slots * max(sizes) / GIB), family, 1)
            held.clear()
            self.same(sample(tight, family, callback=lambda *_: held.append(
                len(host_of(tight)._patches._near or ()))), baked)
            self.assertEqual(set(held), {count})

    def test_zeros_that_comfyui_has_not_made_yet_are_patched(self) -> None:
        family = FAMILIES["Wan"]
        pictures = []
        for form in (None, "compute", "storage"):
            patcher = build(family)
            for block in blocks_of(patcher, family):
                bias = block.ffn[0].bias
                block.ffn[0].bias = torch.nn.Parameter(
                    torch.empty(bias.shape, dtype=bias.dtype, device="meta"), requires_grad=False)
            patched = patcher.clone()
            assert patched.add_patches({
                f"diffusion_model.blocks.{at}.ffn.0.bias": ("diff", (torch.ones(bias.shape),))
                for at in range(5)}, 0.5)
            if form is None and DYNAMIC:
                continue
            pictures.append(sample(stream(patched, host_format=form) if form else patched, family))
        for one in pictures[1:]:
            self.same(one, pictures[0])

    def test_an_interrupt_leaves_no_patches_behind(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        before = weights(patcher)
        streamed = small_lora(stream(patcher, host_format="storage"), family, 1)
        picture = sample(streamed, family)

        def interrupt(*_: Any) -> None:
            self.assertTrue(host_of(streamed)._patches._near)
            raise management.InterruptProcessingException()

        with self.assertRaises(management.InterruptProcessingException):
            sample(streamed, family, callback=interrupt)
        self.assertIsNone(host_of(streamed)._patches._near)
        self.assertEqual(host_of(streamed).store.stats.device_bytes, 0)
        management.unload_all_models()  # whose other layers are patched in place
        self.untouched(patcher, before)
        self.same(sample(streamed, family), picture)

    def test_a_device_without_room_for_patches_gets_them_at_each_use(self) -> None:
        family = FAMILIES["Wan"]
        patches = part("patches")
        streamed = small_lora(stream(build(family), host_format="storage"), family, 1)
        first = sample(streamed, family)
        with unittest.mock.patch.object(patches.Patches, "_moved",
                                        side_effect=management.OOM_EXCEPTION("full")), \
                self.assertLogs("shoal", "WARNING") as said:
            self.same(sample(streamed, family), first)
        self.assertIn("no room", said.output[0])


class Files:
    """A checkpoint's file for a patcher's blocks, as ComfyUI's dynamic mode names it."""

    def __init__(self, patcher: Any, family: Model) -> None:
        self.file = tempfile.NamedTemporaryFile(prefix="shoal-test-")
        lock = threading.Lock()
        for block in blocks_of(patcher, family):
            for value in block.parameters():
                data = value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
                offset = self.file.tell()
                self.file.write(data)
                value.untyped_storage()._comfy_tensor_file_slice = TensorFileSlice(
                    self.file, lock, offset, len(data))
        self.file.flush()


def each_larger_family(test: Callable[..., None]) -> Callable[[Case], None]:
    """Without those that the least RAM budget holds: it is of whole MiB."""
    def run(self: Case, family: Model) -> None:
        if sum(stream(build(family)).get_attachment("shoal").session.sizes) > 2 << 20:
            test(self, family)
    run.__name__ = test.__name__
    return each_family(run)


def tight(patcher: Any, family: Model) -> Dict[str, Any]:
    """The least RAM budget: blocks are read from disk in every step."""
    try:
        sample(stream(patcher, tiering="ram_disk", ram_budget_gb=1e-6), family)
    except ValueError as error:
        least = re.search(r"^ram_budget_gb .* the least that works .* is ([\d.]+)", str(error))
        return {"tiering": "ram_disk", "ram_budget_gb": float(least[1])}
    raise AssertionError("a budget of a kilobyte is no error")


class RamDisk(Case):
    @each_larger_family
    def test_storage_streams_files_and_patches_them_on_the_device(self, family: Model) -> None:
        patcher = build(family)
        plain = sample(patcher, family)
        baked = sample(small_lora(stream(patcher), family, 1), family)
        files = Files(patcher, family)
        for block in blocks_of(patcher, family):
            for value in block.parameters():
                value.data.zero_()  # what is in memory is not what is read
        streamed = stream(patcher, host_format="storage", **tight(patcher, family))
        self.same(sample(streamed, family), plain)
        self.same(sample(small_lora(streamed, family, 1), family), baked)
        stats = host_of(streamed).store.stats
        self.assertGreater(stats.disk_blocks, 0)
        self.assertGreater(stats.read_bytes, stats.weight_bytes)
        self.assertNotIn("names no file", report(streamed))
        for form, words in (("compute", "'storage'.*disk_cache"), ("storage", "disk_cache")):
            patched = lora(patcher, family, 1)  # too large for the device, in 'storage'
            with self.assertRaisesRegex(ValueError, words):
                sample(stream(patched, host_format=form, **tight(patcher, family)), family)
        files.file.close()

    def test_copies_stay_within_the_budget(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        inputs = tight(patcher, family)
        for block in blocks_of(patcher, family):
            for module in block.modules():
                if hasattr(module, "weight_comfy_model_dtype"):
                    module.weight_comfy_model_dtype = torch.bfloat16
        inputs["ram_budget_gb"] /= 4
        with self.assertRaisesRegex(ValueError, "give disk_cache"):
            sample(stream(patcher, **inputs), family)


def open_in(folder: str) -> int:
    """How many of this process's open files lie there, with a name or without."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(folder + "/")
        except OSError:
            pass
    return found


class DiskCache(Case):
    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory(prefix="shoal-test-")
        self.addCleanup(made.cleanup)
        self.folder = os.path.realpath(made.name)

    @each_larger_family
    def test_what_has_no_file_is_streamed_from_one(self, family: Model) -> None:
        patcher = build(family)
        plain = sample(patcher, family)
        baked = sample(lora(stream(patcher), family, 1), family)
        budget = tight(patcher, family)
        for form in ("compute", "storage"):
            streamed = stream(patcher, host_format=form, disk_cache=self.folder, **budget)
            patched = lora(streamed, family, 1)
            for _ in range(2):
                self.same(sample(streamed, family), plain)
                self.same(sample(patched, family), baked)
            for one in (streamed, patched):
                store = host_of(one).store
                self.assertGreater(store.stats.disk_blocks, 0)
                self.assertEqual(store._kept, [])  # no weight is held beside the RAM tier
                self.assertIn(f"written to '{self.folder}'", report(one))
            self.assertGreater(open_in(self.folder), 0)
            self.assertEqual(os.listdir(self.folder), [])
            del streamed, patched, one, store
            management.unload_all_models()
            gc.collect()
            self.assertEqual(open_in(self.folder), 0)

    def test_only_what_has_no_file_is_written(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        files = Files(patcher, family)
        sizes = [value.nbytes for block in blocks_of(patcher, family)
                 for value in block.parameters() if value.ndim == 2]
        written = []
        for make in (lambda one: one, lambda one: small_lora(one, family, 1)):
            streamed = make(stream(patcher, disk_cache=self.folder, **tight(patcher, family)))
            sample(streamed, family)
            written.append(host_of(streamed)._cache.nbytes)
        self.assertEqual(written[0], 0)
        self.assertGreaterEqual(written[1], sum(sizes))
        self.assertLess(written[1], sum(sizes) + 4096 * len(sizes))
        files.file.close()

    def test_tensors_begin_where_they_can_be_read_past_the_page_cache(self) -> None:
        cache = part("cache").Cache(self.folder)
        tensors = [torch.randn(count) for count in (1, 5000, 3)]
        tensors.append(tensors[0].to(torch.float8_e4m3fn).reshape(()))
        offsets = [cache.write(one) for one in tensors]
        cache.flush()
        self.assertEqual(offsets, [0, 4096, 4096 + 20480, 4096 + 24576])
        with open(cache.path, "rb") as file:
            for one, offset in zip(tensors, offsets):
                file.seek(offset)
                self.assertEqual(file.read(one.nbytes),
                                 one.reshape(-1).view(torch.uint8).numpy().tobytes())
        cache.close()

    def test_a_folder_that_will_not_do_is_named(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        file, nowhere, link = (os.path.join(self.folder, name) for name in "abc")
        with open(file, "w", encoding="utf-8"):
            pass
        os.symlink(os.path.join(self.folder, "nowhere"), nowhere)
        for folder, words in ((self.folder + "/none", "none' is not there"), (file, "no folder"),
                              (nowhere, "a link to nothing"), ("/proc", "no file can be written")):
            with self.subTest(folder=folder), self.assertRaisesRegex(ValueError, words):
                sample(stream(patcher, disk_cache=folder, **tight(patcher, family)), family)
        os.symlink(self.folder, link)
        sample(stream(patcher, disk_cache=link, **tight(patcher, family)), family)

    def test_a_full_disk_leaves_nothing(self) -> None:
        family = FAMILIES["Wan"]
        patcher = build(family)
        plain = sample(patcher, family)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        try:
            with self.assertRaisesRegex(ValueError, f"'{self.folder}' takes no more") as caught:
                sample(stream(patcher, disk_cache=self.folder, **tight(patcher, family)), family)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEqual((open_in(self.folder), os.listdir(self.folder)), (0, []), caught.exception)
        streamed = stream(patcher, disk_cache=self.folder, **tight(patcher, family))
        self.same(sample(streamed, family), plain)


if __name__ == "__main__":
    sys.exit(main(__name__))
