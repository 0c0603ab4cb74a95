"""Patches of weights (LoRA and the like) that are applied on the device, at each use of a block.

For host_format 'storage'. The arithmetic is ComfyUI's own: the patcher is asked for the patched
weight while the one that was shipped is in its module's place. What else is here is where the
patches' own tensors lie meanwhile.

They are copied to the device once a run, if there is room for them (`room`): a copy at each use, as
ComfyUI's own would be, comes from pageable memory and holds the device up. Patches that do not fit,
such as the differences of a merged model, are as large as the weights. Shipping them with the block
would cost more of the link and of host memory than shipping the block with them baked in, for the
same bits, so that is what host.py does then.
"""

from __future__ import annotations

import copy
import logging
import weakref
from typing import Any, Callable, Dict, Iterable, Optional, Sequence

import comfy.lora
import comfy.model_management
import torch
from comfy.weight_adapter.base import WeightAdapterBase

from .families import Place
from .options import GIB, Options

log = logging.getLogger("shoal")


def of_places(patcher: Any, places: Iterable[Place]) -> Dict[str, Any]:
    """The patcher's patches of these blocks, by the weight's name."""
    prefixes = tuple(place.path + "." for place in places)
    return {key: value for key, value in patcher.patches.items() if key.startswith(prefixes)}


def patchable(module: torch.nn.Module) -> bool:
    """Whether ComfyUI's load patches the module's own weights: not beside those of modules in it,
    such as Wan's `modulation`."""
    return not any(True for child in module.children() for _ in child.parameters())


LEAST_PAGED_BYTES = 16 << 10  # smaller modules are patched before, in dynamic mode as well


def _patched_at_use(patcher: Any, key: str, module: torch.nn.Module, weight: torch.Tensor,
                    dtype: torch.dtype) -> bool:
    """Whether ComfyUI would patch this weight at each use and compute with just what that gives.

    In dynamic mode, unless weights are of another type than is computed in: it rounds those when
    they stay on the device, and results differ from one use to the next.
    """
    return (patcher.is_dynamic() and type(weight) in (torch.Tensor, torch.nn.Parameter)
            and hasattr(module, "comfy_cast_weights")
            and comfy.model_management.module_size(module) > LEAST_PAGED_BYTES
            and getattr(patcher.model, "manual_cast_dtype", None) in (None, dtype)
            and comfy.lora.calculate_shape(patcher.patches[key], weight, key) == weight.shape)


def patched(patcher: Any, key: str, module: torch.nn.Module, name: str) -> torch.Tensor:
    """The weight that the module has now, patched on the device as ComfyUI would in its mode."""
    weight, device = getattr(module, name), patcher.load_device
    dtype = getattr(module, f"{name}_comfy_model_dtype", None) or weight.dtype
    if not _patched_at_use(patcher, key, module, weight, dtype):
        return patcher.patch_weight_to_device(key, device_to=device, return_weight=True)
    weight = weight.detach().to(device=device, dtype=dtype, copy=True)  # patched in place
    return comfy.lora.calculate_weight(patcher.patches[key], weight, key, intermediate_dtype=dtype)


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A patch with its tensors changed; they lie in tuples, lists and adapters."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, WeightAdapterBase):
        changed = copy.copy(value)
        changed.weights = _map(value.weights, change)
        return changed
    if type(value) in (tuple, list):
        return type(value)(_map(one, change) for one in value)
    return value


def size(patches: Dict[str, Any]) -> int:
    """Bytes of their tensors; one that several weights share counts once."""
    found: Dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        found[id(tensor)] = tensor.nbytes
        return tensor

    _map(list(patches.values()), count)
    return sum(found.values())


def room(sizes: Sequence[int], options: Options) -> int:
    """For patches on the device: as much as the blocks take there, or what the budget leaves."""
    largest = max(sizes)
    slots = options.slots * largest
    if not options.vram_budget_gb:
        return slots
    unpacked = largest if options.wire == "packed" else 0
    return max(0, int(options.vram_budget_gb * GIB) - slots - unpacked)


class Patches:
    """Those of the patcher that runs, of the blocks of one host tier."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = tuple(places)
        self.stop()

    def start(self, patcher: Any) -> None:
        """Takes this patcher's. They go to the device when a block first needs them."""
        if self._patcher() is not patcher or self._uuid != patcher.patches_uuid:
            self._patcher, self._uuid = weakref.ref(patcher), patcher.patches_uuid
            self._own, self._near = of_places(patcher, self._places), None

    def stop(self) -> None:
        """Lets go what it has on the device."""
        self._patcher: Callable[[], Any] = lambda: None
        self._uuid: Any = None
        self._own: Dict[str, Any] = {}
        self._near: Optional[Dict[str, Any]] = None

    def apply(self, key: str, module: torch.nn.Module, name: str) -> Optional[torch.Tensor]:
        """The weight patched, by what its module holds now; None if it has no patches."""
        if key not in self._own or not patchable(module):
            return None
        patcher = self._patcher()
        if self._near is None:
            self._near = self._placed(patcher.load_device)
        theirs, patcher.patches = patcher.patches, self._near
        try:
            return patched(patcher, key, module, name)
        finally:
            patcher.patches = theirs

    def _moved(self, device: torch.device) -> Dict[str, Any]:
        moved: Dict[int, torch.Tensor] = {}

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device)
            return moved[id(tensor)]

        return {key: _map(value, move) for key, value in self._own.items()}

    def _placed(self, device: torch.device) -> Dict[str, Any]:
        taken = size(self._own) / GIB
        try:
            near = self._moved(device)
        except comfy.model_management.OOM_EXCEPTION:
            log.warning("shoal: the device has no room for the %.2f GiB of the streamed blocks' "
                        "patches: they are copied to it at each use", taken)
            return self._own
        log.info("shoal: %.2f GiB of patches are on the device while the model runs", taken)
        return near
