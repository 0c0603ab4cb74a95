"""Checkpoints of random weights in real models' sizes, in ComfyUI's Python, on a card.

    bench_models.py FOLDER CASE ...
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, NamedTuple, Tuple


class Case(NamedTuple):
    model: str  # of comfy.supported_models
    unet: Dict[str, Any]
    latent: Tuple[int, ...]
    context: Tuple[int, ...]
    caps_gib: Tuple[float, ...]  # what the card seems to have; 0: all of it
    dtype: str = "bfloat16"
    fp8: bool = False  # the blocks' matrices, with a scale each


_QWEN = {"image_model": "qwen_image", "in_channels": 64, "out_channels": 16, "num_layers": 30}
_WAN = {"image_model": "wan2.1", "model_type": "t2v", "dim": 5120, "ffn_dim": 13824,
        "num_heads": 40, "num_layers": 40, "in_dim": 16, "out_dim": 16, "patch_size": (1, 2, 2),
        "freq_dim": 256, "text_dim": 4096, "text_len": 512, "cross_attn_norm": True}

CASES = {
    # Whole.
    "anima": Case(
        "Anima", {"image_model": "anima", "max_img_h": 240, "max_img_w": 240, "max_frames": 128,
                  "in_channels": 16, "out_channels": 16, "patch_spatial": 2, "patch_temporal": 1,
                  "model_channels": 2048, "num_blocks": 28, "num_heads": 16,
                  "crossattn_emb_channels": 1024, "pos_emb_cls": "rope3d",
                  "pos_emb_learnable": True, "pos_emb_interpolation": "crop", "min_fps": 1,
                  "max_fps": 30, "concat_padding_mask": True, "use_adaln_lora": True,
                  "adaln_lora_dim": 256},
        (1, 16, 1, 128, 128), (1, 512, 1024), (3.0, 0.0)),
    # Whole, 14B: 832x480, 5 frames, and 33.
    "wan": Case("WAN21_T2V", _WAN, (1, 16, 2, 60, 104), (1, 512, 4096), (6.0, 0.0),
                "float16"),
    "wan_long": Case("WAN21_T2V", _WAN, (1, 16, 9, 60, 104), (1, 512, 4096), (6.0,),
                     "float16"),
    # Half as deep: 1024x1024.
    "qwen": Case("QwenImage", _QWEN, (1, 16, 1, 128, 128), (1, 64, 3584), (6.0, 12.0, 0.0)),
    "qwen_fp8": Case("QwenImage", _QWEN, (1, 16, 1, 128, 128), (1, 64, 3584), (4.0, 0.0), fp8=True),
}


def path(folder: str, name: str) -> str:
    return os.path.join(folder, f"bench_{name.replace('_long', '')}.safetensors")


def _quantised(key: str, value: Any) -> bool:
    return "blocks." in key and key.endswith(".weight") and value.ndim == 2


def _random(shape: Tuple[int, ...], key: str, generator: Any, torch: Any) -> Any:
    value = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32)
    if len(shape) == 1 and key.endswith(".weight"):
        return 1 + value * 0.02  # a norm's
    return value * 0.02


def make(folder: str, name: str) -> None:
    import comfy.supported_models as supported
    import safetensors.torch
    import torch

    case = CASES[name]
    dtype = getattr(torch, case.dtype)
    made = getattr(supported, case.model)({**case.unet, "dtype": dtype})
    made.set_inference_dtype(dtype, None)
    model = made.get_model({}, device=torch.device("meta")).diffusion_model
    generator = torch.Generator("cuda").manual_seed(1)
    tensors = {}
    for key, value in model.named_parameters():
        filled = _random(tuple(value.shape), key, generator, torch)
        if not case.fp8 or not _quantised(key, value):
            tensors[key] = filled.to(dtype).cpu()
            continue
        scale = filled.abs().max() / 448
        tensors[key] = (filled / scale).to(torch.float8_e4m3fn).cpu()
        inside = key[:-len("weight")]
        tensors[inside + "weight_scale"] = scale.cpu()
        said = json.dumps({"format": "float8_e4m3fn"}).encode()
        tensors[inside + "comfy_quant"] = torch.tensor(list(said), dtype=torch.uint8)
    safetensors.torch.save_file(tensors, path(folder, name))


if __name__ == "__main__":
    FOLDER, NAMES = sys.argv[1], sys.argv[2:]
    sys.argv = sys.argv[:1]
    sys.path.insert(0, os.environ["COMFYUI_DIR"])
    for one in NAMES:
        if not os.path.exists(path(FOLDER, one)):
            make(FOLDER, one)
