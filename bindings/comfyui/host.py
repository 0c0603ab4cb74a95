"""The host tier: a model's streamed blocks in one shoal.Store, as one set of patches has them, or
without patches (patches.py).

Hosts are held by the patchers that run with them and by nothing else: when the last one is gone, so
is the memory.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import comfy.model_management
import shoal
import shoal.torch
import torch

from . import patches
from .cache import Cache
from .capture import Block, Capture, block_bytes, modules, swapped
from .families import Place
from .measures import Run
from .options import GIB, Options, Refused, gib, shown

_HOSTS: "weakref.WeakValueDictionary[Tuple[Any, ...], Host]" = weakref.WeakValueDictionary()
log = logging.getLogger("shoal")


def get(patcher: Any, places: Sequence[Place], options: Options) -> "Host":
    """The one that patchers of these weights share, made if there is none."""
    baked = _baked(patcher, places, options)
    key = (id(patcher.model), str(patcher.load_device), patcher.patches_uuid if baked else None,
           tuple(places), options)
    host = _HOSTS.get(key)
    if host is None or host.store.closed:
        host = Host(patcher, places, options, baked)
        _HOSTS[key] = host
    return host


def _block(patcher: Any, place: Place) -> torch.nn.Module:
    return patcher.model.diffusion_model.get_submodule(f"{place.list}.{place.index}")


def _baked(patcher: Any, places: Sequence[Place], options: Options) -> bool:
    """Whether what is shipped has the patches in it already."""
    if options.host_format == "compute":
        return True
    found = patches.size(patches.of_places(patcher, places))
    return found > 0 and found > patches.room(
        [block_bytes(_block(patcher, place)) for place in places], options)


def _count_pinned(counted: List[int], now: int) -> None:
    """ComfyUI's limit of pinned memory is shared: it is told what is pinned here."""
    management = comfy.model_management
    if hasattr(management, "TOTAL_PINNED_MEMORY"):
        management.TOTAL_PINNED_MEMORY = max(
            0, management.TOTAL_PINNED_MEMORY + now - counted[0])
    counted[0] = now


def _too_small(failure: str, options: Options, copied_bytes: int) -> str:
    """What the store said of a budget, by the input that it comes from."""
    found = re.search(r"the least that works .* is --(vram|ram) (\d+)", failure)
    if found is None:
        return f"the budgets are too small: {failure}"
    name = f"{found[1]}_budget_gb"
    beside = (f", beside {gib(copied_bytes)} for weights that no file has as they are shipped: "
              "give disk_cache, or more" if copied_bytes else "")
    return (f"{name} {getattr(options, name):g} is too small for the streamed blocks: the least "
            f"that works with these inputs is {math.ceil(int(found[2]) / GIB * 1e6) / 1e6:.6f} "
            f"({gib(int(found[2]))}){beside}")


class Host:
    """Runs blocks on weights that arrive a moment before. Between start and stop it has device
    memory; weights stay in host memory after stop."""

    def __init__(self, patcher: Any, places: Sequence[Place], options: Options,
                 baked: bool) -> None:
        self.model = patcher.model  # which its key names by address
        self.notes: List[str] = []  # what was not done as asked for
        self._said: List[str] = []  # for the report only
        # Short names: a trace keeps 35 letters of them.
        self.names = [f"{place.list}.{place.index}" for place in places]
        # If none are left to be applied at each use, there are none to be looked for.
        self._patches = patches.Patches(() if baked else places)
        self._cache = Cache(options.disk_cache) if options.disk_cache else None
        self._forced: List[Tuple[Any, Any]] = []
        self._running = False
        self.runs = 0
        self._run: Optional[Run] = None
        self.last_run: Optional[Run] = None  # that has ended
        self._pinned = [0]
        try:
            self._capture(patcher, places, options, baked)
        except BaseException:
            if self._cache is not None:  # the error's traceback would keep it
                self._cache.close()
            raise
        weakref.finalize(self, _count_pinned, self._pinned, 0).atexit = False

    def _capture(self, patcher: Any, places: Sequence[Place], options: Options,
                 baked: bool) -> None:
        capture = Capture(patcher, options, baked, self._cache)
        self._blocks: List[Block] = [capture.block(place.path, _block(patcher, place))
                                     for place in places]
        described = [(name, block.tensors) for name, block in zip(self.names, self._blocks)]
        self.store = self._create(described, patcher.load_device, options, capture.copied_bytes)
        for block in self._blocks:
            block.tensors.clear()  # the store keeps them for as long as it needs them
        if options.tiering == "ram" and self.store.stats.disk_blocks:
            needed = gib(self.store.stats.weight_bytes)
            self.store.close()
            raise Refused(f"ram_budget_gb {options.ram_budget_gb:g} does not hold the "
                          f"{len(places)} streamed blocks ({needed}): raise it, or choose "
                          "tiering 'ram_disk'")
        if self.store.stats.disk_blocks and capture.unfiled_bytes:
            self.notes.append(f"tiering 'ram_disk': ComfyUI names no file for "
                              f"{gib(capture.unfiled_bytes)} of the streamed blocks: what "
                              "ram_budget_gb does not hold of that is read from its own copy in "
                              "host memory. Give disk_cache to read it from disk")
        if self._cache is not None and self._cache.nbytes:
            self._said.append(f"disk_cache: {gib(self._cache.nbytes)} were written to "
                              f"{shown(options.disk_cache)}")

    def _create(self, blocks: Any, device: Any, options: Options,
                copied_bytes: int) -> shoal.torch.Store:
        failure: Optional[shoal.Error] = None
        for number, attempt in enumerate(options.attempts()):
            if "ram" in attempt:  # which the copies may have to stay in, beside the RAM tier
                attempt["ram"] -= copied_bytes
            attempt["pin"] = self._pin(attempt["pin"], blocks, device, options)
            try:
                store = shoal.torch.Store(blocks, device=device, trace=True, **attempt)
            except shoal.Error as error:
                if error.status != shoal.Status.BUDGET:
                    raise
                failure = error  # of the least that may be done
                continue
            if number:
                self.notes.append(f"vram_budget_gb {options.vram_budget_gb:g} holds less than was "
                                  f"asked for: {attempt['buffer']} buffer, "
                                  f"{store.stats.prefetch_slots} slots")
            return store
        raise Refused(_too_small(str(failure), options, copied_bytes))

    def _pin(self, pin: str, blocks: Any, device: Any, options: Options) -> str:
        """Within ComfyUI's limit of pinned memory, where there is one."""
        management = comfy.model_management
        limit = getattr(management, "MAX_PINNED_MEMORY", None)
        if pin != "on" or device.type != "cuda" or limit is None:
            return pin
        needed = sum(tensor.nbytes for _, tensors in blocks for tensor in tensors)
        if options.ram_budget_gb:
            needed = min(needed, int(options.ram_budget_gb * GIB))
        if limit > 0 and hasattr(management, "ensure_pin_registerable"):
            management.ensure_pin_registerable(needed)
        if limit > 0 and management.TOTAL_PINNED_MEMORY + needed <= limit:
            return pin
        why = (f"pin_memory: {needed / GIB:.1f} GiB are more than ComfyUI lets be pinned "
               f"({max(0, limit) / GIB:.1f} GiB)")
        if not options.auto_config:
            raise Refused(f"{why}: turn pin_memory off, or auto_config on")
        if why not in self.notes:
            self.notes.append(f"{why}: only the staging memory is pinned")
        return "staging"

    def start(self, patcher: Any) -> None:
        self._patches.start(patcher)
        if self._running:
            return
        run = Run(self.store, patcher.load_device)
        self.store.resume()
        self._running = True
        self._run, self.last_run = run, None
        self.runs += 1
        if patcher.force_cast_weights:
            self._force_casts()

    def _force_casts(self) -> None:
        """What ComfyUI's load does where another type is computed in: blocks are hidden from it."""
        for module in {entry.module for block in self._blocks for entry in block.entries}:
            if hasattr(module, "comfy_cast_weights"):
                self._forced.append((module, module.__dict__.get("comfy_cast_weights")))
                module.comfy_cast_weights = True

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._run.use(index)
        with self.store.block(index) as tensors, swapped(
                self._blocks[index], tensors, self._patches):
            return forward(*args, **kwargs)

    def stop(self) -> None:
        """Gives the device's memory back. Does nothing if it has none."""
        self._patches.stop()
        if not self._running:
            return
        failing = sys.exc_info()[0] is not None
        self._running = False
        for module, before in self._forced:
            if before is None:
                del module.comfy_cast_weights
            else:
                module.comfy_cast_weights = before
        self._forced.clear()
        try:
            _count_pinned(self._pinned, self.store.stats.pinned_bytes)
            self._run.ends()
            self.store.suspend()
            self._run.ended()
            self.last_run = self._run
        except shoal.Error as error:
            self.store.close()  # the next run captures again
            _count_pinned(self._pinned, 0)
            if not failing:
                raise
            log.error("shoal: %s", error)

    def text(self) -> str:
        return "\n".join([self.store.text.rstrip(), *self._said, *self.notes])


def _elsewhere(value: torch.Tensor) -> bool:
    return value.device.type not in ("cpu", "meta")


def evict(patcher: Any, place: Place) -> int:
    """A streamed block as its checkpoint has it, in host memory; how many bytes were elsewhere."""
    block = _block(patcher, place)
    moved = 0
    for inside, module in modules(block):
        prefix = f"{place.path}.{inside}" if inside else place.path
        for slots in (module._parameters, module._buffers):
            for name, value in slots.items():
                if value is not None and _elsewhere(value):
                    moved += value.nbytes
                saved = patcher.backup.pop(f"{prefix}.{name}", None)
                if saved is not None:
                    slots[name] = torch.nn.Parameter(saved.weight, requires_grad=False)
        for name in ("weight_function", "bias_function"):
            if getattr(module, name, None):
                setattr(module, name, [])
        if hasattr(module, "comfy_patched_weights"):
            del module.comfy_patched_weights
    if moved:
        torch.nn.Module._apply(
            block, lambda value: value.to("cpu") if _elsewhere(value) else value)
    return moved
