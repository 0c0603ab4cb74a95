"""Tiny models of real families, of random weights, in ComfyUI's Python."""

from __future__ import annotations

from typing import Any, Dict

import comfy.memory_management
import comfy.model_management as management
import comfy.model_patcher
import comfy.supported_models as supported
import torch


class Model:
    """A tiny model of a family, its latent and its conditioning."""

    def __init__(self, config: Any, unet: Dict[str, Any], latent: tuple, context: tuple,
                 lists: tuple, dtype: torch.dtype) -> None:
        self.latent, self.context, self.lists = latent, context, lists
        self._config, self._unet, self.dtype = config, unet, dtype

    def build(self, dynamic: bool = False) -> Any:
        """A patcher, of the kind that pages weights if `dynamic`."""
        config, unet, dtype = self._config, dict(self._unet), self.dtype
        made = config({**unet, "dtype": dtype})
        made.set_inference_dtype(dtype, None)
        model = made.get_model({}, device=torch.device("cpu"))
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.05).to(dtype)
        model.eval()
        kind = comfy.model_patcher.ModelPatcher
        if dynamic:
            model, kind = self._lazy(made, model), comfy.model_patcher.ModelPatcherDynamic
        return kind(model, load_device=management.get_torch_device(),
                    offload_device=management.unet_offload_device())

    def _lazy(self, made: Any, filled: Any) -> Any:
        """The same weights as dynamic mode has them, whose layers take theirs when they load."""
        comfy.memory_management.aimdo_enabled = True
        try:
            model = made.get_model({}, device=torch.device("cpu"))
            model.load_model_weights(dict(filled.diffusion_model.state_dict()), "")
        finally:
            comfy.memory_management.aimdo_enabled = False
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
    "Qwen-Image": Model(
        supported.QwenImage,
        {"image_model": "qwen_image", "in_channels": 64, "out_channels": 16, "num_layers": 5,
         "attention_head_dim": 64, "num_attention_heads": 2, "joint_attention_dim": 64,
         "axes_dims_rope": (16, 24, 24), "patch_size": 2},
        (1, 16, 1, 8, 8), (1, 5, 64), ("transformer_blocks",), torch.bfloat16),
}
