"""Tiny models of real families, of random weights, in ComfyUI's Python."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional

import comfy.memory_management
import comfy.model_management as management
import comfy.model_patcher
import comfy.supported_models as supported
import torch


@contextlib.contextmanager
def paging(on: bool) -> Iterator[None]:
    """Whether modules are made without parameters, which dynamic mode brings: not as ComfyUI was
    started for."""
    before = comfy.memory_management.aimdo_enabled
    comfy.memory_management.aimdo_enabled = on
    try:
        yield
    finally:
        comfy.memory_management.aimdo_enabled = before


class Model:
    """A tiny model of a family, its latent and its conditioning."""

    def __init__(self, config: Any, unet: Dict[str, Any], latent: tuple, context: tuple,
                 lists: tuple, dtype: torch.dtype, pooled: tuple = (),
                 masked: bool = False) -> None:
        self.latent, self.context, self.lists, self._masked = latent, context, lists, masked
        self._config, self.unet, self.dtype, self._pooled = config, unet, dtype, pooled

    def conditioning(self, seed: int) -> list:
        generator = torch.Generator().manual_seed(seed)
        # Masks of one length make one batch, which ComfyUI's attention on the CPU cannot mask.
        batch, tokens, width = self.context
        context = torch.randn((batch, tokens + self._masked * seed, width), generator=generator)
        more = {}
        if self._pooled:
            more["pooled_output"] = torch.randn(self._pooled, generator=generator)
        if self._masked:
            more["attention_mask"] = torch.ones(context.shape[:2])
        return [[context, more]]

    def build(self, dynamic: bool = False, stored: Optional[torch.dtype] = None,
              state: Optional[Dict[str, torch.Tensor]] = None) -> Any:
        """A patcher, of the kind that pages weights if `dynamic`.

        Its weights are `stored` in another type than it computes in, or are a checkpoint's `state`.
        """
        made = self._config({**self.unet, "dtype": stored or self.dtype})
        made.set_inference_dtype(stored or self.dtype, self.dtype if stored else None)
        if state is not None and any(key.endswith(".comfy_quant") for key in state):
            made.quant_config, made.manual_cast_dtype = {"mixed_ops": True}, self.dtype
        with paging(False):
            model = made.get_model({}, device=torch.device("cpu"))
        if state is None:
            generator = torch.Generator().manual_seed(1)
            for parameter in model.parameters():
                parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.05).to(
                    stored or self.dtype)
        elif not dynamic:
            model.load_model_weights(dict(state), "")
        model.eval()
        kind = comfy.model_patcher.ModelPatcher
        if dynamic:
            model, kind = self._lazy(made, state or model.diffusion_model.state_dict()), \
                comfy.model_patcher.ModelPatcherDynamic
        patcher = kind(model, load_device=management.get_torch_device(),
                       offload_device=management.unet_offload_device())
        patcher.cached_patcher_init = (self._again, (dynamic, stored, state))
        return patcher

    def _again(self, dynamic: bool, stored: Optional[torch.dtype],
               state: Optional[Dict[str, torch.Tensor]], disable_dynamic: bool = False) -> Any:
        """For ComfyUI, which loads a model once more where it needs a copy."""
        return self.build(dynamic and not disable_dynamic, stored, state)

    def _lazy(self, made: Any, state: Dict[str, torch.Tensor]) -> Any:
        """The same weights as dynamic mode has them, whose layers take theirs when they load."""
        with paging(True):
            model = made.get_model({}, device=torch.device("cpu"))
            model.load_model_weights(dict(state), "")
        return model.eval()


FAMILIES = {
    "MiniTrainDIT": Model(
        supported.CosmosT2IPredict2,
        {"image_model": "cosmos_predict2", "max_img_h": 64, "max_img_w": 64, "max_frames": 8,
         "in_channels": 16, "out_channels": 16, "patch_spatial": 2, "patch_temporal": 1,
         "model_channels": 128, "num_blocks": 6, "num_heads": 2, "crossattn_emb_channels": 64,
         "pos_emb_cls": "rope3d", "concat_padding_mask": True, "use_adaln_lora": True,
         "adaln_lora_dim": 16},
        (1, 16, 1, 8, 8), (1, 5, 64), ("blocks",), torch.bfloat16),
    "Wan": Model(
        supported.WAN21_T2V,
        {"image_model": "wan2.1", "model_type": "t2v", "dim": 128, "ffn_dim": 256,
         "num_heads": 2, "num_layers": 5, "in_dim": 16, "out_dim": 16, "patch_size": (1, 2, 2),
         "freq_dim": 64, "text_dim": 64, "text_len": 16, "cross_attn_norm": True},
        (1, 16, 1, 8, 8), (1, 5, 64), ("blocks",), torch.float32),
    "Z-Image": Model(
        supported.ZImage,
        {"image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 256,
         "n_layers": 4, "n_refiner_layers": 2, "n_heads": 4, "n_kv_heads": 4, "qk_norm": True,
         "cap_feat_dim": 64, "axes_dims": (16, 24, 24), "axes_lens": (64, 64, 64),
         "z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32,
         "ffn_dim_multiplier": 1.0, "rope_theta": 256.0},
        (1, 16, 8, 8), (1, 5, 64), ("context_refiner", "noise_refiner", "layers"),
        torch.bfloat16),
    "FLUX": Model(
        supported.Flux,
        {"image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 32,
         "context_in_dim": 64, "hidden_size": 128, "mlp_ratio": 2.0, "num_heads": 2, "depth": 2,
         "depth_single_blocks": 3, "axes_dim": [16, 24, 24], "theta": 10000, "patch_size": 2,
         "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": []},
        (1, 16, 8, 8), (1, 5, 64), ("double_blocks", "single_blocks"), torch.bfloat16, (1, 32)),
    "Qwen-Image": Model(
        supported.QwenImage,
        {"image_model": "qwen_image", "in_channels": 64, "out_channels": 16, "num_layers": 5,
         "attention_head_dim": 64, "num_attention_heads": 2, "joint_attention_dim": 64,
         "axes_dims_rope": (16, 24, 24), "patch_size": 2},
        (1, 16, 1, 8, 8), (1, 5, 64), ("transformer_blocks",), torch.bfloat16),
    "LTX-Video": Model(
        supported.LTXV,
        {"image_model": "ltxv", "in_channels": 16, "cross_attention_dim": 128,
         "attention_head_dim": 64, "num_attention_heads": 2, "caption_channels": 64,
         "num_layers": 5},
        (1, 16, 3, 4, 4), (1, 5, 64), ("transformer_blocks",), torch.bfloat16, masked=True),
    "HunyuanVideo": Model(
        supported.HunyuanVideo,
        {"image_model": "hunyuan_video", "in_channels": 16, "out_channels": 16, "vec_in_dim": 32,
         "context_in_dim": 64, "hidden_size": 128, "mlp_ratio": 2.0, "num_heads": 2, "depth": 2,
         "depth_single_blocks": 3, "axes_dim": [16, 24, 24], "theta": 256,
         "patch_size": [1, 2, 2], "qkv_bias": True, "guidance_embed": True, "byt5": False,
         "meanflow": False, "use_cond_type_embedding": False, "vision_in_dim": None,
         "meanflow_sum": False},
        (1, 16, 1, 8, 8), (1, 5, 64), ("double_blocks", "single_blocks"), torch.bfloat16, (1, 32)),
    "Chroma": Model(
        supported.Chroma,
        {"image_model": "chroma", "in_channels": 64, "out_channels": 64, "in_dim": 64,
         "out_dim": 128, "hidden_dim": 64, "n_layers": 2, "context_in_dim": 64,
         "hidden_size": 128, "mlp_ratio": 2.0, "num_heads": 2, "depth": 2,
         "depth_single_blocks": 3, "axes_dim": [16, 24, 24], "theta": 10000, "patch_size": 2,
         "qkv_bias": True, "txt_ids_dims": [], "vec_in_dim": None},
        (1, 16, 8, 8), (1, 5, 64), ("double_blocks", "single_blocks"), torch.bfloat16),
}
