"""Nodes for the tests of the server: a tiny model and what it samples from, a latent's hash, and
what goes wrong."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any, List, Type

import comfy.memory_management
import torch
from comfy.model_management import InterruptProcessingException
from comfy_api.latest import ComfyExtension, io, ui

sys.path.append(os.environ["SHOAL_COMFY_TESTS"])

from tiny_models import FAMILIES  # noqa: E402


class Tiny(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(node_id="TestTiny", inputs=[
            io.Combo.Input("family", options=list(FAMILIES))], outputs=[
            io.Model.Output(), io.Conditioning.Output(), io.Latent.Output()])

    @classmethod
    def execute(cls, family: str) -> io.NodeOutput:
        chosen = FAMILIES[family]
        patcher = chosen.build(comfy.memory_management.aimdo_enabled)
        return io.NodeOutput(patcher, chosen.conditioning(3),
                             {"samples": torch.zeros(chosen.latent)})


class Digest(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(node_id="TestDigest", inputs=[io.Latent.Input("latent")], outputs=[],
                         is_output_node=True)

    @classmethod
    def execute(cls, latent: Any) -> io.NodeOutput:
        data = latent["samples"].float().cpu().contiguous().numpy().tobytes()
        return io.NodeOutput(ui=ui.PreviewText(hashlib.sha256(data).hexdigest()))


class Failing(io.ComfyNode):
    """Runs out of memory, or is interrupted, within a block of the second step."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(node_id="TestFailing", inputs=[
            io.Model.Input("model"), io.Boolean.Input("interrupt")], outputs=[io.Model.Output()])

    @classmethod
    def execute(cls, model: Any, interrupt: bool) -> io.NodeOutput:
        model, key, calls = model.clone(), "diffusion_model.blocks.3.ffn.forward", iter((0,))
        inside = model.get_model_object(key)

        def forward(*args: Any) -> Any:
            for _ in calls:
                return inside(*args)
            raise InterruptProcessingException() if interrupt else torch.OutOfMemoryError("full")
        model.add_object_patch(key, forward)
        return io.NodeOutput(model)


class Extension(ComfyExtension):
    async def get_node_list(self) -> List[Type[io.ComfyNode]]:
        return [Tiny, Digest, Failing]


async def comfy_entrypoint() -> Extension:
    return Extension()
