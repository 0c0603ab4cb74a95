"""Nodes for bench.py: what a model of real size samples from, and a sampler that says how long its
steps took."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any, List, Type

import comfy.model_management as management
import comfy.sample
import torch
from comfy_api.latest import ComfyExtension, io, ui

sys.path.append(os.environ["SHOAL_COMFY_TESTS"])

from bench_models import CASES  # noqa: E402


class Lora(io.ComfyNode):
    """A patch of rank 16 on the matrices of every block."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(node_id="BenchLora", inputs=[
            io.Model.Input("model"), io.Int.Input("seed")], outputs=[io.Model.Output()])

    @classmethod
    def execute(cls, model: Any, seed: int) -> io.NodeOutput:
        from comfy.weight_adapter import LoRAAdapter

        patched, patches = model.clone(), {}
        generator = torch.Generator().manual_seed(seed)
        for key, value in model.model.state_dict().items():
            if "blocks." in key and key.endswith(".weight") and value.ndim == 2:
                up = torch.randn((value.shape[0], 16), generator=generator) * 0.02
                down = torch.randn((16, value.shape[1]), generator=generator) * 0.02
                patches[key] = LoRAAdapter(set(), (up, down, 16.0, None, None, None))
        patched.add_patches(patches, 1.0)
        return io.NodeOutput(patched)


class Timed(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(node_id="BenchSampler", is_output_node=True, not_idempotent=True, inputs=[
            io.Model.Input("model"), io.String.Input("case"), io.Int.Input("steps"),
            io.Int.Input("run")], outputs=[])

    @classmethod
    def execute(cls, model: Any, case: str, steps: int, run: int) -> io.NodeOutput:
        generator = torch.Generator().manual_seed(3)
        shapes = CASES[case]
        noise = torch.randn(shapes.latent, generator=generator)
        context = [[torch.randn(shapes.context, generator=generator), {}]]
        begun, ends = time.monotonic(), []

        def stepped(*_: Any) -> None:
            torch.cuda.synchronize()
            ends.append(time.monotonic())

        latent = comfy.sample.sample(model, noise, steps, 1.0, "euler", "simple", context, context,
                                     torch.zeros(shapes.latent), seed=3, callback=stepped,
                                     disable_pbar=True)
        whole = time.monotonic() - begun
        took = sorted(b - a for a, b in zip(ends, ends[1:]))
        found = {"step_s": round(took[len(took) // 2], 4), "best_s": round(took[0], 4),
                 "first_s": round(ends[0] - begun, 2), "all_s": round(whole, 2),
                 "finite": bool(torch.isfinite(latent).all()),
                 "hash": hashlib.sha256(latent.float().cpu().contiguous().numpy().tobytes())
                 .hexdigest()[:12]}
        found["counted_pinned"] = management.TOTAL_PINNED_MEMORY
        binding = model.get_attachment("shoal")
        if binding is not None:
            found["streamed"] = len(binding.session.places)
            if binding.host is not None:
                stats = binding.host.store.stats
                found["pinned_ratio"] = round(stats.pinned_bytes / stats.weight_bytes, 4)
                found["waited_s"] = round(stats.wait_seconds, 3)
                found["slots"] = stats.prefetch_slots
        return io.NodeOutput(ui=ui.PreviewText(json.dumps(found)))


class Extension(ComfyExtension):
    async def get_node_list(self) -> List[Type[io.ComfyNode]]:
        return [Lora, Timed]


async def comfy_entrypoint() -> Extension:
    return Extension()
