"""What a node does to a ComfyUI model: its blocks run on weights that shoal brings.

Only on what ComfyUI offers: object patches on a clone of the model, and its callbacks. Three
attributes of each streamed block are patched while the model is in use. `forward` runs on shipped
weights; `_apply` and `named_modules` hide the block from whatever moves, patches and counts
weights, so that ComfyUI loads the rest of the model only, in its legacy and in its dynamic mode.
"""

from __future__ import annotations

import logging
import uuid
import weakref
from typing import Any, Callable, Dict, Iterable, Optional, Sequence, Tuple

import comfy.model_management
import torch
from comfy.patcher_extension import CallbacksMP, WrappersMP

from . import host as hosts
from .capture import block_bytes
from .families import Family, Place, Unsupported, find
from .options import Options, Refused, residents, swap_count

KEY = "shoal"
KEY_COMPILE = "torch.compile"  # of the wrapper that ComfyUI compiles models by
log = logging.getLogger("shoal")


class Binding:
    """What a patcher holds: the session, shared by clones, and the host tier of its weights."""

    def __init__(self, session: "Session", host: Optional[hosts.Host] = None) -> None:
        self.session = session
        self.host = host

    def on_model_patcher_clone(self) -> "Binding":
        return Binding(self.session, self.host)


class Session:
    """One node's work on one model."""

    def __init__(self, patcher: Any, family: Family, streamed: Iterable[Place],
                 options: Options, raises: bool = False) -> None:
        self._model = weakref.ref(patcher.model)
        self.family = family
        self.options = options
        self.raises = raises  # Shoal Block Swap: more blocks are swapped if the rest does not fit
        self.sizes = [block_bytes(_block(patcher, place)) for place in family.places]
        self._host: Optional[hosts.Host] = None
        self._runner: Callable[[], Any] = lambda: None
        self._calls = 0
        self._said = False
        self.stream(streamed)

    def stream(self, places: Iterable[Place]) -> None:
        self.places: Tuple[Place, ...] = tuple(places)
        self._indices: Dict[Place, int] = {place: at for at, place in enumerate(self.places)}

    def streams(self, place: Place) -> bool:
        return place in self._indices

    @property
    def streamed_sizes(self) -> Sequence[int]:
        return [size for place, size in zip(self.family.places, self.sizes) if self.streams(place)]

    # ---- callbacks ----

    def on_load(self, patcher: Any, _device: Any, budget: float, *_: Any) -> None:
        self._check(patcher)
        if self.raises and not patcher.is_dynamic() and patcher.load_device.type != "cpu":
            self.raise_swapped(patcher, budget)
        self._prepare(patcher)

    def raise_swapped(self, patcher: Any, budget: float) -> None:
        """Swaps more blocks, if those left would not fit into what ComfyUI grants the model."""
        whole = comfy.model_management.module_size(patcher.model)
        count, more = swap_count(len(self.places), self.sizes, whole, budget)
        if more:
            log.warning("shoal: %d blocks are swapped instead of %d: the rest of the model would "
                        "not fit into the %.2f GiB that ComfyUI grants it", count,
                        len(self.places), budget / hosts.GIB)
            self.stream(self.family.places[:count])

    def on_pre_run(self, patcher: Any) -> None:
        self._check(patcher)
        host = self._prepare(patcher)
        if self._host is not host:
            self._stop()
        host.start(patcher)
        self._host, self._runner, self._calls = host, weakref.ref(patcher), 0
        if not self._said:
            self._said = True
            log.info("shoal: %d of %d blocks of %s are streamed, over %.2f GiB of device memory",
                     len(self.places), len(self.family.places), self.family.name,
                     host.store.device_bytes / hosts.GIB)
            for note in host.notes:
                log.warning("shoal: %s", note)
            if any(KEY_COMPILE in keys for keys in patcher.wrappers.values()):
                log.warning("shoal: torch.compile: streamed blocks run as they are, not compiled")

    def on_cleanup(self, patcher: Any) -> None:
        if self._host is not None and self._runner() in (patcher, None):
            if not self._calls:
                log.warning("shoal: none of the streamed blocks was called in this run")
            self._stop()

    def on_detach(self, patcher: Any, *_: Any) -> None:
        # Also fired when any clone is collected: only the one that runs counts.
        if self._host is not None and self._runner() is patcher:
            self._stop()

    def _stop(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.stop()

    def _check(self, patcher: Any) -> None:
        if patcher.model is not self._model():
            raise Refused("this model was copied after the shoal node (for several devices, or by "
                          "torch.compile without dynamic VRAM): put the shoal node after what "
                          "copies it")
        if patcher.hook_patches or patcher.forced_hooks:
            raise Refused("LoRA hooks change weights while the model runs, and streamed blocks "
                          "were baked before: use LoRA loaders instead, or turn the node off")
        prefixes = tuple(place.path + "." for place in self.places)
        for key in patcher.weight_wrapper_patches:
            if key.startswith(prefixes):
                raise Refused(f"another node wraps {key}, which is streamed: leave that block to "
                              "ComfyUI (resident_blocks), or turn one of the nodes off")

    def _prepare(self, patcher: Any) -> hosts.Host:
        """The patcher's host tier, captured if its weights are new."""
        moved = sum(hosts.evict(patcher, place) for place in self.places)
        if moved:
            model = patcher.model
            model.model_loaded_weight_memory = max(0, model.model_loaded_weight_memory - moved)
        binding = patcher.get_attachment(KEY)
        binding.host = hosts.get(patcher, self.places, self.options)
        return binding.host

    # ---- a block's call ----

    def run(self, place: Place, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index = self._indices.get(place)
        if index is None:
            return forward(*args, **kwargs)
        if self._host is None:
            raise RuntimeError("shoal: a streamed block was called outside of sampling: run the "
                               "model through a sampler, or turn the shoal node off")
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("shoal: streamed blocks cannot be captured in a CUDA graph: turn "
                               "the shoal node or the capture off")
        self._calls += 1
        return self._host.run(index, forward, args, kwargs)


def _block(patcher: Any, place: Place) -> torch.nn.Module:
    return patcher.model.diffusion_model.get_submodule(f"{place.list}.{place.index}")


def _patch(patcher: Any, session: Session, place: Place) -> None:
    forward = patcher.get_model_object(f"{place.path}.forward")
    block = _block(patcher, place)

    def run(*args: Any, **kwargs: Any) -> Any:
        return session.run(place, forward, args, kwargs)

    def apply(function: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
        return block if session.streams(place) else type(block)._apply(block, function, recurse)

    def named_modules(*args: Any, **kwargs: Any) -> Any:
        if session.streams(place):
            return iter(())
        return type(block).named_modules(block, *args, **kwargs)

    patcher.add_object_patch(f"{place.path}.forward", torch.compiler.disable(run))
    patcher.add_object_patch(f"{place.path}._apply", apply)
    patcher.add_object_patch(f"{place.path}.named_modules", named_modules)


def _without_prefetch(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """Else ComfyUI's dynamic mode fetches every block as well. The options are this call's own."""
    for options in (*args, *kwargs.values()):
        if isinstance(options, dict) and "prefetch_dynamic_vbars" in options:
            options["prefetch_dynamic_vbars"] = False
    return executor(*args, **kwargs)


def _attach(model: Any, session: Session, patched: Iterable[Place]) -> Any:
    patcher = model.clone()
    patcher.set_attachments(KEY, Binding(session))
    for place in patched:
        _patch(patcher, session, place)
    for name, call in ((CallbacksMP.ON_LOAD, session.on_load),
                       (CallbacksMP.ON_PRE_RUN, session.on_pre_run),
                       (CallbacksMP.ON_CLEANUP, session.on_cleanup),
                       (CallbacksMP.ON_DETACH, session.on_detach)):
        patcher.add_callback_with_key(name, KEY, call)
    patcher.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, _without_prefetch)
    # Loaded otherwise than the model it came from: ComfyUI must not take one for the other.
    patcher.patches_uuid = uuid.uuid5(model.patches_uuid, f"{KEY} {session.places}")
    streamed = session.streamed_sizes
    slots = session.options.slots * max(streamed)
    patcher.size = max(1, model.model_size() - sum(streamed)) + min(slots, sum(streamed))
    return patcher


def _family(model: Any) -> Family:
    if model.get_attachment(KEY) is not None:
        raise Refused("this model already runs through a shoal node: use one of them")
    if model.load_device.type not in ("cuda", "cpu"):
        raise Refused(f"shoal streams to NVIDIA cards and to the CPU, not to "
                      f"{model.load_device.type}")
    if model.load_device.type == "cuda" and model.offload_device.type != "cpu":
        raise Refused("ComfyUI was started with --highvram or --gpu-only and keeps models on the "
                      "device: start it without, so that blocks can wait in host memory")
    inner = getattr(model.model, "diffusion_model", None)
    if inner is None:
        raise Unsupported(f"{type(model.model).__name__} has no diffusion model")
    return find(inner)


def stream(model: Any, options: Options) -> Any:
    """A clone of the model whose blocks are streamed, but for options.resident_blocks."""
    options.check()
    family = _family(model)
    kept = set(residents(len(family.places), options.resident_blocks, options.resident_mode))
    streamed = [place for at, place in enumerate(family.places) if at not in kept]
    session = Session(model, family, streamed, options)
    patcher = _attach(model, session, streamed)
    if options.sage_attention:
        from comfy.ldm.modules.attention import attention_sage

        patcher.set_model_optimized_attention(attention_sage)
    return patcher


def swap(model: Any, blocks_to_swap: int, pin_memory: bool) -> Any:
    """A clone of the model whose first blocks are streamed; more, if the rest would not fit."""
    options = Options(pin_memory=pin_memory)
    family = _family(model)
    if blocks_to_swap > len(family.places):
        log.warning("shoal: blocks_to_swap is %d, and the model has %d: all are swapped",
                    blocks_to_swap, len(family.places))
    streamed = family.places[:blocks_to_swap]
    session = Session(model, family, streamed, options, raises=True)
    return _attach(model, session, family.places)
