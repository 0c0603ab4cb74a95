"""Runs inside ComfyUI's Python: models that ComfyUI loads from files of every kind, streamed.

One TAP line a case. Started by run.py beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Tuple
from unittest import mock

from support import (DYNAMIC, FAMILIES, Case, Model, lora, main, management, sample, stream, torch,
                     weights)

import comfy.memory_management
import comfy.model_detection
import comfy.model_patcher
import comfy.sd
import comfy.supported_models as supported
import comfy_aimdo.control
import safetensors.torch
import shoal
import shoal.torch
from comfy.quant_ops import QuantizedTensor

State = Dict[str, torch.Tensor]
FP8 = torch.float8_e4m3fn

# Of the sizes that ComfyUI takes for granted in files of these families.
FILES = {
    "Wan": Model(
        supported.WAN21_T2V,
        {"image_model": "wan2.1", "model_type": "t2v", "dim": 128, "ffn_dim": 4096, "num_heads": 1,
         "num_layers": 4, "in_dim": 16, "out_dim": 16, "patch_size": (1, 2, 2), "freq_dim": 256,
         "text_dim": 4096, "text_len": 512, "cross_attn_norm": True},
        (1, 16, 1, 8, 8), (1, 5, 4096), ("blocks",), torch.bfloat16),
    "MiniTrainDIT": Model(
        supported.CosmosT2IPredict2,
        {"image_model": "cosmos_predict2", "max_img_h": 240, "max_img_w": 240, "max_frames": 128,
         "in_channels": 16, "out_channels": 16, "patch_spatial": 2, "patch_temporal": 1,
         "model_channels": 256, "num_blocks": 4, "num_heads": 16, "crossattn_emb_channels": 1024,
         "pos_emb_cls": "rope3d", "concat_padding_mask": True, "use_adaln_lora": True,
         "adaln_lora_dim": 256},
        (1, 16, 1, 8, 8), (1, 5, 1024), ("blocks",), torch.bfloat16),
    "Qwen-Image": FAMILIES["Qwen-Image"],  # detected() says its sizes
}


@contextlib.contextmanager
def detected(family: Model) -> Iterator[None]:
    """ComfyUI detects the family, and takes some sizes for those of the real model."""
    found = comfy.model_detection.detect_unet_config

    def detect(*args: Any, **kwargs: Any) -> Any:
        config = found(*args, **kwargs)
        assert config["image_model"] == family.unet["image_model"]
        return {**config, **family.unet}
    if family is not FILES["Qwen-Image"]:
        yield
        return
    with mock.patch.object(comfy.model_detection, "detect_unet_config", detect):
        yield


def matrices(state: State, family: Model) -> List[str]:
    """The names of layers within blocks that quantised checkpoints quantise."""
    return [key[:-len(".weight")] for key, value in state.items()
            if key.startswith(family.lists) and key.endswith(".weight") and value.ndim == 2]


def as_type(dtype: torch.dtype) -> Callable[[State, Model], Tuple[State, Dict[str, str]]]:
    return lambda state, _: ({key: value.to(dtype) for key, value in state.items()}, {})


def quantised(state: State, family: Model, scale_name: str) -> Tuple[State, List[str]]:
    state, layers = dict(state), matrices(state, family)
    for layer in layers:
        value = state[f"{layer}.weight"].float()
        scale = value.abs().max() / torch.finfo(FP8).max
        state[f"{layer}.weight"] = (value / scale).to(FP8)
        state[f"{layer}.{scale_name}"] = scale.reshape(())
    return state, layers


def with_keys(state: State, family: Model) -> Tuple[State, Dict[str, str]]:
    """As ComfyUI writes quantised models."""
    state, layers = quantised(state, family, "weight_scale")
    for layer in layers:
        said = json.dumps({"format": "float8_e4m3fn"}).encode()
        state[f"{layer}.comfy_quant"] = torch.tensor(list(said), dtype=torch.uint8)
    return state, {}


def with_metadata(state: State, family: Model) -> Tuple[State, Dict[str, str]]:
    state, layers = quantised(state, family, "weight_scale")
    said = {"layers": {layer: {"format": "float8_e4m3fn"} for layer in layers}}
    return state, {"_quantization_metadata": json.dumps(said)}


def of_old(state: State, family: Model) -> Tuple[State, Dict[str, str]]:
    """The "fp8 scaled" files from before."""
    state, layers = quantised(state, family, "scale_weight")
    for layer in layers:
        state[f"{layer}.scale_input"] = torch.tensor(1.0)
    return {**state, "scaled_fp8": torch.zeros(0, dtype=FP8)}, {}


# What is written, and the dtype that the loading node is asked for.
KINDS = {
    "bf16": (as_type(torch.bfloat16), None),
    "fp16": (as_type(torch.float16), None),
    "fp16 in bf16": (as_type(torch.float16), torch.bfloat16),
    "fp8 as it is": (as_type(FP8), FP8),
    "fp8 in another type": (as_type(FP8), None),
    "fp8 scaled, by keys": (with_keys, None),
    "fp8 scaled, by metadata": (with_metadata, None),
    "fp8 scaled, of old": (of_old, None),
}


class Files(Case):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name: str, family: Model, kind: str) -> str:
        state = FILES[name].build().model.diffusion_model.state_dict()
        state, metadata = KINDS[kind][0](state, family)
        path = os.path.join(self.folder.name, f"{name}.safetensors")
        safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()},
                                    path, metadata or None)
        return path

    def load(self, path: str, family: Model, kind: str) -> Any:
        """As the node that loads diffusion models does."""
        dtype = KINDS[kind][1]
        options = {} if dtype is None else {"dtype": dtype}
        with contextlib.ExitStack() as held:
            held.enter_context(detected(family))
            held.enter_context(torch.inference_mode())
            if DYNAMIC:
                held.enter_context(self.lazily())
            return comfy.sd.load_diffusion_model(path, options)

    @contextlib.contextmanager
    def lazily(self) -> Iterator[None]:
        """As with dynamic VRAM: files are mapped, and say where each tensor lies."""
        with mock.patch.object(comfy.memory_management, "aimdo_enabled", True), mock.patch.object(
                comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcherDynamic):
            yield

    def test_latents_are_those_of_the_model_alone(self) -> None:
        for name, family in FILES.items():
            for kind in KINDS:
                with self.subTest(family=name, kind=kind):
                    path = self.write(name, family, kind)
                    plain = sample(self.load(path, family, kind), family, steps=1)
                    patcher = self.load(path, family, kind)
                    self.is_of_kind(patcher, family, kind)
                    before = weights(patcher)
                    streamed = stream(patcher)
                    for one in (streamed, patcher, streamed):
                        self.same(sample(one, family, steps=1), plain)
                    self.untouched(patcher, before)
                    management.unload_all_models()

    def is_of_kind(self, patcher: Any, family: Model, kind: str) -> None:
        """The file was taken for what it is."""
        blocks = getattr(patcher.model.diffusion_model, family.lists[0])
        held = [one.weight for one in blocks.modules() if isinstance(one, torch.nn.Module)
                and getattr(one, "weight", None) is not None and one.weight.ndim == 2]
        self.assertGreater(len(held), 8)
        for weight in held:
            self.assertEqual("scaled" in kind, isinstance(weight, QuantizedTensor))
            if kind == "fp8 as it is":
                self.assertEqual(weight.dtype, FP8)

    def test_lora_on_files_of_fp8_is_repeatable(self) -> None:
        family = FILES["Wan"]
        # Dynamic mode rounds fp8 that it patches when that stays on the device: no one result.
        kinds = ("fp16 in bf16",) if DYNAMIC else (
            "fp8 as it is", "fp8 scaled, by keys", "fp16 in bf16")
        for kind in kinds:
            with self.subTest(kind=kind):
                path = self.write("Wan", family, kind)
                baked = sample(lora(self.load(path, family, kind), family, 1), family, steps=1)
                patcher = self.load(path, family, kind)
                plain = sample(patcher, family, steps=1)
                self.assertFalse(torch.equal(baked, plain))
                streamed = stream(patcher)
                for _ in range(2):
                    self.same(sample(lora(streamed, family, 1), family, steps=1), baked)
                    self.same(sample(streamed, family, steps=1), plain)

    def test_blocks_on_disk_are_read_from_their_file(self) -> None:
        if management.get_torch_device().type == "cuda" and not DYNAMIC:
            self.skipTest("legacy mode names no files")
        if not comfy_aimdo.control.init():
            self.skipTest("comfy-aimdo cannot be loaded")
        family = FILES["Wan"]
        for kind in ("bf16", "fp8 as it is", "fp8 scaled, by keys"):
            with self.subTest(kind=kind):
                path = self.write("Wan", family, kind)
                dtype = KINDS[kind][1] or torch.bfloat16
                with self.lazily(), torch.inference_mode(), mock.patch.object(
                        comfy.model_patcher.ModelPatcher, "is_dynamic", lambda _: True):
                    patcher = comfy.sd.load_diffusion_model(path, {"dtype": dtype})
                plain = sample(patcher, family, steps=2)
                block = max(stream(patcher).get_attachment("shoal").session.sizes)
                streamed = stream(patcher, tiering="ram_disk", ram_budget_gb=2.2 * block / 2**30)
                described: List[shoal.Tensor] = []
                store = shoal.torch.Store

                def create(blocks: Any, **options: Any) -> Any:
                    described[:] = [tensor for _, tensors in blocks for tensor in tensors]
                    return store(blocks, **options)
                with mock.patch.object(shoal.torch, "Store", create):
                    self.same(sample(streamed, family, steps=2), plain)
                in_memory = [one for one in described if one.path != path]
                if "scaled" not in kind and not DYNAMIC:  # else biases are cast, or copied
                    self.assertFalse([one.name for one in in_memory])
                self.assertFalse([one.name for one in in_memory if one.nbytes > 8192 * 4])
                stats = streamed.get_attachment("shoal").host.store.stats
                self.assertGreater(stats.disk_blocks, 0)
                self.assertGreater(stats.read_bytes, stats.weight_bytes * 5 // 4)


if __name__ == "__main__":
    sys.exit(main(__name__))
