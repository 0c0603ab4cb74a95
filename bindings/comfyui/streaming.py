"""What a node does to a ComfyUI model: its blocks run on weights that shoal brings.

Only on what ComfyUI offers: object patches on a clone of the model, its callbacks and wrappers.
Three attributes of a block that may be streamed are patched while the model is in use. `forward`
runs on shipped weights; `_apply` and `named_modules` hide the block from whatever moves, patches
and counts weights, so that ComfyUI loads the rest of the model only, in its legacy and in its
dynamic mode. How many blocks are streamed is decided before ComfyUI loads anything.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import uuid
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import comfy.model_management
import torch
from comfy.patcher_extension import CallbacksMP, WrappersMP

from . import attention
from . import host as hosts
from .capture import block_bytes
from .families import Family, Place, Unsupported, find
from .options import (GIB, MARGIN_BYTES, Options, Refused, gib, is_limit, residents,
                      spread_order, stream_count)

KEY = "shoal"
KEY_COMPILE = "torch.compile"  # of the wrapper that ComfyUI compiles models by
RING_SHARE = 0.125  # of the blocks' memory, that more than two slots may take
log = logging.getLogger("shoal")


class Binding:
    """What a patcher holds: the session, shared by clones, and the host tier of its weights."""

    def __init__(self, session: "Session", host: Optional[hosts.Host] = None,
                 names: Tuple[Any, Any] = (None, None)) -> None:
        self.session = session
        self.host = host
        self._names = names  # patches_uuid without streaming and with it

    def on_model_patcher_clone(self) -> "Binding":
        return Binding(self.session, self.host, self._names)

    def name(self, patcher: Any) -> None:
        """A model with streamed blocks is loaded otherwise than the one that it came from:
        ComfyUI, which goes by patches_uuid, must not take one for the other."""
        own, ours = self._names
        if patcher.patches_uuid != ours:  # LoRA has been added since, or nothing was named yet
            own = patcher.patches_uuid
        ours = uuid.uuid5(own, f"{KEY} {self.session.places}")
        self._names = (own, ours)
        patcher.patches_uuid = ours


class Session:
    """One node's work on one model. `order` are the blocks that may be streamed: the first `least`
    of them are, and if it `grows`, as many more as the rest of the model does not fit without."""

    def __init__(self, patcher: Any, family: Family, order: Sequence[Place], least: int,
                 options: Options, grows: bool) -> None:
        self._model = weakref.ref(patcher.model)
        self.family = family
        self.options = options
        self.order = tuple(order)
        self.grows = grows
        self._least = least
        self._one_cond = False  # of the run that goes on
        self._bytes = {place: block_bytes(_block(patcher, place)) for place in family.places}
        self._host: Optional[hosts.Host] = None
        self._runner: Callable[[], Any] = lambda: None  # the patcher whose run goes on
        self._calls = 0
        self._busy = False
        self._said: Set[str] = set()
        self._stream(least)

    def _stream(self, count: int) -> None:
        chosen = set(self.order[:count])
        self.places = tuple(place for place in self.family.places if place in chosen)
        self._indices: Dict[Place, int] = {place: at for at, place in enumerate(self.places)}

    @torch.compiler.disable  # or it is compiled for one block after the other
    def streams(self, place: Place) -> bool:
        return place in self._indices

    @property
    def sizes(self) -> List[int]:
        return list(self._bytes.values())

    @property
    def streamed_sizes(self) -> List[int]:
        return [self._bytes[place] for place in self.places]

    # ---- how much is streamed ----

    def _choose(self, patcher: Any, noise_shape: Sequence[int], conds: Dict[str, Any]) -> None:
        if self.grows and _limited(patcher):
            at_once = 1 if self._one_cond else min(2, max(1, len(conds)))
            self.grow(patcher, _room(patcher, [noise_shape[0] * at_once, *noise_shape[1:]]))
        patcher.get_attachment(KEY).name(patcher)
        if not patcher.is_dynamic():  # where it is virtual memory, and whole
            patcher.size = self._taken(patcher, len(self.places))

    def _other_bytes(self, patcher: Any) -> int:
        return comfy.model_management.module_size(patcher.model) - sum(self.sizes)

    def _ring_bytes(self, count: int) -> int:
        """About what streaming takes: slots of packed blocks, and one of them unpacked."""
        slots = min(self.options.slots, count)
        unpacked = 0.5 if self.options.wire == "packed" and count else 0.0
        return int((slots + unpacked) * max(self._bytes.values()))

    def _taken(self, patcher: Any, count: int) -> int:
        """On the device, if so many blocks are streamed."""
        kept = sum(self._bytes.values()) - sum(self._bytes[place] for place in self.order[:count])
        return max(1, self._other_bytes(patcher) + kept + self._ring_bytes(count))

    def grow(self, patcher: Any, room: float) -> bool:
        """Streams more blocks, if those left would not fit into `room` bytes; whether it does.

        They never become fewer again: what is captured of them stays useful, and a run that needs
        as much memory may come again.
        """
        now, other = len(self.places), self._other_bytes(patcher)
        if self.options.vram_budget_gb:
            room = min(room, other + self.options.vram_budget_gb * GIB)
        if now > self._least:
            room += MARGIN_BYTES  # nothing is captured anew for a little that came or went
        sizes = [self._bytes[place] for place in self.order]
        if self.options.auto_config and (now or other + sum(sizes) > room):
            self._fit_slots(room - other)
        count = stream_count(now, sizes, other, self._ring_bytes(len(self.order)), room)
        if count == now:
            return False
        if self._least:
            log.warning("shoal: %d blocks are swapped instead of %d: the rest of the model would "
                        "not fit into the %s that there are", count, now, gib(max(0, room)))
        self._stream(count)
        return True

    def _fit_slots(self, room: float) -> None:
        """Fewer slots, where many take too much from the blocks that could stay: two keep a link
        as busy as more do where it is copies that are waited for."""
        slots, largest = self.options.slots, max(self._bytes.values())
        if slots * largest <= room * RING_SHARE:
            return
        fitting = min(slots, 2 if 2 * largest <= room else 1)
        if fitting == slots:
            return
        log.info("shoal: prefetch_slots is %d instead of %d: the device holds little more",
                 fitting, slots)
        self.options = dataclasses.replace(self.options, **(
            {"prefetch_slots": fitting} if fitting > 1 else {"buffer_mode": "single"}))

    # ---- callbacks ----

    def on_sample(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around a run. With a scale of 1 ComfyUI leaves one of the conditionings out."""
        guider = executor.class_obj
        self._one_cond = math.isclose(getattr(guider, "cfg", 0.0), 1.0) and \
            not guider.model_options.get("disable_cfg1_optimization", False)
        return executor(*args, **kwargs)

    def on_prepare(self, executor: Any, patcher: Any, noise_shape: Any, conds: Any, *args: Any,
                   **kwargs: Any) -> Any:
        """Before ComfyUI loads the model for a run."""
        self._check(patcher)  # while nothing is patched that a refusal would leave behind
        self._choose(patcher, noise_shape, conds)
        return executor(patcher, noise_shape, conds, *args, **kwargs)

    def on_load(self, patcher: Any, _device: Any, budget: float, *_: Any) -> None:
        self._check(patcher)
        # Legacy mode knows best what it grants. Blocks that it has loaded meanwhile are evicted.
        if self.grows and _limited(patcher) and not patcher.is_dynamic() and is_limit(budget) \
                and self.grow(patcher, budget - MARGIN_BYTES):
            patcher.get_attachment(KEY).name(patcher)
            patcher.model.current_weight_patches_uuid = patcher.patches_uuid
        self._prepare(patcher)

    def on_pre_run(self, patcher: Any) -> None:
        self._check(patcher)
        host = self._prepare(patcher)
        if self._host is not host:
            self._stop()
        if host is None:
            return self._say(logging.INFO, f"{self.family.name} fits into the device's memory: "
                             "nothing is streamed")
        host.start(patcher)
        self._host, self._runner, self._calls = host, weakref.ref(patcher), 0
        self._say(logging.INFO, f"{len(self.places)} of {len(self.family.places)} blocks of "
                  f"{self.family.name} are streamed, over "
                  f"{gib(host.store.device_bytes)} of device memory")
        for note in host.notes:
            self._say(logging.WARNING, note)
        if any(KEY_COMPILE in keys for keys in patcher.wrappers.values()):
            self._say(logging.WARNING,
                      "torch.compile: streamed blocks run as they are, not compiled")

    def _say(self, level: int, text: str) -> None:
        """Once, though every run and every clone has it to say."""
        if text not in self._said:
            self._said.add(text)
            log.log(level, "shoal: %s", text)

    def on_cleanup(self, patcher: Any) -> None:
        if self._runner() in (patcher, None):
            self._runner = lambda: None
            if self._host is not None and not self._calls:
                log.warning("shoal: none of the streamed blocks was called in this run")
            self._stop()

    def on_detach(self, patcher: Any, *_: Any) -> None:
        # Also fired when any clone is collected: only the one that runs counts.
        if self._runner() is patcher:
            self._stop()

    def _running(self) -> hosts.Host:
        """The host of the run that goes on, which an unload in between may have stopped."""
        runner = self._runner()
        if runner is None:
            raise RuntimeError("shoal: a streamed block was called outside of sampling: run the "
                               "model through a sampler, or turn the shoal node off")
        if self._host is None:
            self._host = runner.get_attachment(KEY).host
        self._host.start(runner)
        return self._host

    def _stop(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.stop()

    def _check(self, patcher: Any) -> None:
        # First: for these, ComfyUI's dynamic mode copies the model.
        if patcher.hook_patches or patcher.forced_hooks:
            raise Refused("LoRA hooks change weights while the model runs, and streamed blocks "
                          "were baked before: use LoRA loaders instead, or turn the node off")
        if comfy.model_management.in_training:
            raise Refused("streamed blocks cannot be trained: turn the shoal node off")
        if patcher.model is not self._model():
            raise Refused("this model was copied after the shoal node (for several devices, or by "
                          "torch.compile without dynamic VRAM): put the shoal node after what "
                          "copies it")
        prefixes = tuple(place.path + "." for place in self.places)
        for key, value in patcher.object_patches.items():
            inside = key.startswith(prefixes) and isinstance(value, (torch.nn.Module, torch.Tensor))
            if inside or any(one.startswith(key + ".") for one in prefixes):
                raise Refused(f"{key} was replaced by another node (some compile blocks that way), "
                              "and is streamed: turn one of the nodes off")
        for key in patcher.weight_wrapper_patches:
            if key.startswith(prefixes):
                raise Refused(f"another node wraps {key}, which is streamed: leave that block to "
                              "ComfyUI (resident_blocks), or turn one of the nodes off")

    def _prepare(self, patcher: Any) -> Optional[hosts.Host]:
        """The patcher's host tier, captured if its weights are new. None if nothing is streamed."""
        if not self.places:
            return None
        moved = sum(hosts.evict(patcher, place) for place in self.places)
        if moved:
            model = patcher.model
            model.model_loaded_weight_memory = max(0, model.model_loaded_weight_memory - moved)
        binding = patcher.get_attachment(KEY)
        binding.host = hosts.get(patcher, self.places, self.options)
        return binding.host

    # ---- a block's call ----

    @torch.compiler.disable
    def run(self, place: Place, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if comfy.model_management.in_training or any(
                isinstance(one, torch.Tensor) and one.requires_grad
                for one in (*args, *kwargs.values())):
            raise Refused("gradients through streamed blocks are not possible, as their weights "
                          "are gone when they would be needed: turn the shoal node off for "
                          "training, and for guidance by gradients")
        host = self._running()
        if self._busy:
            raise Refused("a streamed block was called while another one runs, from within it or "
                          "by another thread: turn the shoal node off")
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("shoal: streamed blocks cannot be captured in a CUDA graph: turn "
                               "the shoal node or the capture off")
        self._calls += 1
        self._busy = True
        try:
            return host.run(self._indices[place], forward, args, kwargs)
        finally:
            self._busy = False


def _limited(patcher: Any) -> bool:
    """Whether the device has memory of its own; on the CPU streaming is for trying things."""
    return patcher.load_device.type == "cuda"


def _room(patcher: Any, input_shape: Sequence[int]) -> float:
    """What there is for a model's weights, in bytes, with all others unloaded."""
    management, device = comfy.model_management, patcher.load_device
    held = sum(loaded.model_loaded_memory() for loaded in management.current_loaded_models
               if loaded.device == device and loaded.model is not None)
    needed = patcher.model.memory_required(input_shape)
    if not patcher.is_dynamic():  # where blocks that stay give way if it was reckoned too closely
        needed = MARGIN_BYTES + max(management.minimum_inference_memory(),
                                    needed + management.extra_reserved_memory())
    return management.get_free_memory(device) + held - needed


def _block(patcher: Any, place: Place) -> torch.nn.Module:
    return patcher.model.diffusion_model.get_submodule(f"{place.list}.{place.index}")


def _patch(patcher: Any, session: Session, place: Place) -> None:
    forward = patcher.get_model_object(f"{place.path}.forward")
    block = _block(patcher, place)

    def run(*args: Any, **kwargs: Any) -> Any:
        if session.streams(place):
            return session.run(place, forward, args, kwargs)
        return forward(*args, **kwargs)

    def apply(function: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
        return block if session.streams(place) else type(block)._apply(block, function, recurse)

    def named_modules(*args: Any, **kwargs: Any) -> Any:
        if session.streams(place):
            return iter(())
        return type(block).named_modules(block, *args, **kwargs)

    # The function itself is not compiled, what it calls may be: blocks that are not streamed.
    patcher.add_object_patch(f"{place.path}.forward",
                             torch.compiler.disable(run, recursive=False))
    patcher.add_object_patch(f"{place.path}._apply", apply)
    patcher.add_object_patch(f"{place.path}.named_modules", named_modules)


def _without_prefetch(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """Else ComfyUI's dynamic mode fetches every block as well. The options are this call's own."""
    for options in (*args, *kwargs.values()):
        if isinstance(options, dict) and "prefetch_dynamic_vbars" in options:
            options["prefetch_dynamic_vbars"] = False
    return executor(*args, **kwargs)


def _attach(model: Any, session: Session) -> Any:
    patcher = model.clone()
    binding = Binding(session)
    patcher.set_attachments(KEY, binding)
    binding.name(patcher)
    for place in session.order:
        _patch(patcher, session, place)
    for name, call in ((CallbacksMP.ON_LOAD, session.on_load),
                       (CallbacksMP.ON_PRE_RUN, session.on_pre_run),
                       (CallbacksMP.ON_CLEANUP, session.on_cleanup),
                       (CallbacksMP.ON_DETACH, session.on_detach)):
        patcher.add_callback_with_key(name, KEY, call)
    patcher.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, session.on_sample)
    patcher.add_wrapper_with_key(WrappersMP.PREPARE_SAMPLING, KEY, session.on_prepare)
    patcher.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, _without_prefetch)
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
    """A clone of the model whose blocks are streamed, but for options.resident_blocks; with
    auto_config on a card, as few of them as the model does not fit without."""
    options.check()
    family = _family(model)
    places = family.places
    grows = options.auto_config and not options.resident_blocks and _limited(model)
    if options.auto_config and options.wire == "auto" and _limited(model):
        # What is streamed crosses in less time, and a card unpacks faster than a link brings.
        options = dataclasses.replace(options, wire="packed")
    if grows:
        order, least = [places[at] for at in spread_order(len(places))], 0
    else:
        kept = set(residents(len(places), options.resident_blocks, options.resident_mode))
        order = [place for at, place in enumerate(places) if at not in kept]
        least = len(order)
    patcher = _attach(model, Session(model, family, order, least, options, grows))
    attention.use(patcher, options)
    return patcher


def swap(model: Any, blocks_to_swap: int, pin_memory: bool) -> Any:
    """A clone of the model whose first blocks are streamed; more, if the rest would not fit."""
    options = Options(pin_memory=pin_memory)
    if blocks_to_swap < 0:
        raise Refused(f"blocks_to_swap is {blocks_to_swap}: give 0 or more")
    family = _family(model)
    if blocks_to_swap > len(family.places):
        log.warning("shoal: blocks_to_swap is %d, and the model has %d: all are swapped",
                    blocks_to_swap, len(family.places))
    count = min(blocks_to_swap, len(family.places))
    return _attach(model, Session(model, family, family.places, count, options, grows=True))
