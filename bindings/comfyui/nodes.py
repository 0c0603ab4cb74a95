"""The nodes, as ComfyUI shows them. What they do is in streaming.py and report.py."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Type

from comfy_api.latest import ComfyExtension, io, ui

from .options import (BUFFER_MODES, HOST_FORMATS, RESIDENT_MODES, SLOTS, TIERINGS, WIRES, Options,
                      Refused)

CATEGORY = "advanced/shoal"
_DEFAULTS = Options()


def _streaming() -> Any:
    """Late, so that ComfyUI shows the nodes, and says what is missing when one is run."""
    try:
        import shoal  # noqa: F401
    except ImportError as error:
        raise Refused(f"the Python package shoal cannot be used ({error}): install its wheel, of "
                      "this pack's version, into ComfyUI's Python") from None
    from . import streaming

    return streaming


def _choice(name: str, choices: Any, tooltip: str) -> Any:
    return io.Combo.Input(name, options=list(choices), default=getattr(_DEFAULTS, name),
                          tooltip=tooltip, advanced=True, optional=True)


def _flag(name: str, tooltip: str, advanced: bool = True) -> Any:
    return io.Boolean.Input(name, default=getattr(_DEFAULTS, name), tooltip=tooltip,
                            advanced=advanced, optional=True)


def _count(name: str, least: int, most: int, tooltip: str) -> Any:
    return io.Int.Input(name, default=getattr(_DEFAULTS, name), min=least, max=most,
                        tooltip=tooltip, optional=True)


def _size(name: str, tooltip: str) -> Any:
    return io.Float.Input(name, default=0.0, min=0.0, max=4096.0, step=0.25, tooltip=tooltip,
                          optional=True)


def _model() -> Any:
    return io.Model.Input("model", tooltip="A diffusion transformer, with LoRA or without.")


def _streamed() -> Any:
    return io.Model.Output(tooltip="The same model, whose blocks are streamed while it samples.")


class LayerStreaming(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ShoalLayerStreaming", display_name="Shoal Layer Streaming",
            category=CATEGORY,
            description="Keeps a transformer's blocks in host memory and ships each to the device "
                        "a moment before it runs. Pictures are those of the model without it.",
            inputs=[
                _model(),
                io.Boolean.Input("enabled", default=True, optional=True,
                                 tooltip="Off: the model as it came."),
                _flag("pin_memory", "Lock the waiting blocks in host memory, so that the card can "
                      "fetch them by itself, and faster.", False),
                _choice("buffer_mode", BUFFER_MODES, "double: the next blocks are fetched while "
                        "one runs. single: one slot, least device memory, slower."),
                _count("resident_blocks", 0, 1000, "Blocks that are left to ComfyUI as usual. "
                       "0 with auto_config: as many as fit."),
                _flag("sage_attention", "Attention by the package sageattention. Changes pictures "
                      "a little."),
                _choice("host_format", HOST_FORMATS, "compute: blocks wait in host memory patched "
                        "and in the model's type. storage: as the checkpoint has them; LoRA is "
                        "applied on the device, in every step. Pictures are the same."),
                _choice("tiering", TIERINGS, "ram: all streamed blocks wait in host memory. "
                        "ram_disk: what ram_budget_gb does not hold is read in every step."),
                _size("ram_budget_gb", "Host memory for streamed blocks, in GiB. 0: no limit."),
                _choice("resident_mode", RESIDENT_MODES, "Which blocks resident_blocks are: the "
                        "first of the model, the last, or spread over it, which hides copies "
                        "best."),
                _flag("sage_pv_fp16", "With sage_attention: its product with the values in FP16, "
                      "also where the package would take FP8."),
                _flag("auto_config", "Streams as few blocks as the card's memory needs, none if "
                      "all fit, with fewer slots and less pinned memory where it must be. Off: "
                      "all but resident_blocks, exactly as asked for.", False),
                _count("prefetch_slots", *SLOTS, "Blocks on the device at a time, with the double "
                       "buffer. More even out copies that take unequally long, and leave less "
                       "memory for blocks that stay."),
                _size("vram_budget_gb", "Device memory for the slots, and with auto_config for "
                      "the blocks that stay as well, in GiB. 0: no limit but the device's."),
                _choice("wire", WIRES, "packed: weights cross to the card packed without loss, "
                        "those in BF16 in two thirds of the time, and are unpacked there. raw: as "
                        "they are. auto: packed on a card with auto_config, else raw."),
                io.String.Input("disk_cache", default="", optional=True, advanced=True,
                                tooltip="With ram_disk: an existing folder, for what no checkpoint "
                                "has as it is shipped, such as blocks with LoRA. Nothing is left "
                                "in it when the model is gone."),
            ],
            outputs=[_streamed()])

    @classmethod
    def execute(cls, model: Any, enabled: bool = True, **inputs: Any) -> io.NodeOutput:
        if not enabled:
            return io.NodeOutput(model)
        options = dataclasses.replace(_DEFAULTS, **inputs)
        options.check()
        return io.NodeOutput(_streaming().stream(model, options))


class BlockSwap(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ShoalBlockSwap", display_name="Shoal Block Swap", category=CATEGORY,
            description="Streams the first blocks of a transformer, and more of them if the rest "
                        "would not fit into what ComfyUI grants the model.",
            inputs=[
                _model(),
                io.Int.Input("blocks_to_swap", default=20, min=0, max=1000,
                             tooltip="How many blocks wait in host memory. 0: the model as it "
                                     "came."),
                _flag("pin_memory", "Lock the waiting blocks in host memory, so that the card can "
                      "fetch them by itself, and faster.", False),
            ],
            outputs=[_streamed()])

    @classmethod
    def execute(cls, model: Any, blocks_to_swap: int, pin_memory: bool = True) -> io.NodeOutput:
        if blocks_to_swap == 0:
            return io.NodeOutput(model)
        return io.NodeOutput(_streaming().swap(model, blocks_to_swap, pin_memory))


class MemoryReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ShoalMemoryReport", display_name="Shoal Memory Report", category=CATEGORY,
            description="What streaming takes, and what the last run did and waited for: as text, "
                        "and as a picture of its last walks over the blocks.",
            inputs=[
                io.Model.Input("model", tooltip="What a shoal node returned."),
                io.Latent.Input("after", optional=True, tooltip="What the sampler made, so that "
                                "the report is of after its run."),
            ],
            outputs=[
                io.String.Output(display_name="report",
                                 tooltip="The plan, the last run's walks, copies and waits, and "
                                         "peaks of memory."),
                io.Image.Output(display_name="timeline",
                                tooltip="What the last run read, copied, unpacked, used and "
                                        "waited for, and when."),
            ],
            is_output_node=True, not_idempotent=True)

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> float:
        return float("nan")  # what was done changes while inputs do not

    @classmethod
    def execute(cls, model: Any, after: Any = None) -> io.NodeOutput:
        from . import report

        text, timeline = report.report(model)
        return io.NodeOutput(text, timeline, ui=ui.PreviewText(text))


class Extension(ComfyExtension):
    async def get_node_list(self) -> List[Type[io.ComfyNode]]:
        return [LayerStreaming, BlockSwap, MemoryReport]


def extension() -> Extension:
    return Extension()
