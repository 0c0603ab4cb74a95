"""From ComfyUI's blocks to the bytes that shoal ships, and back to parameters, for as long as a
block runs.

LoRA is baked into what is shipped, by ComfyUI's own arithmetic on the device that it would use, so
that results are those of a model that was patched before it ran.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import shoal
import shoal.torch
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .options import Refused


class Entry(NamedTuple):
    """A parameter or buffer of a block, and which of the shipped tensors it is made from."""

    module: torch.nn.Module
    slots: Dict[str, Any]  # the module's own _parameters or _buffers
    name: str
    count: int
    build: Callable[[Sequence[torch.Tensor]], torch.Tensor]


class Block(NamedTuple):
    """What a store ships for a block, and where it goes."""

    tensors: List[shoal.Tensor]
    entries: List[Entry]


def modules(block: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module]]:
    """All of a block's, though the block hides them from ComfyUI."""
    return torch.nn.Module.named_modules(block)


def block_bytes(block: torch.nn.Module) -> int:
    """What a block's weights take, as they are."""
    return sum(value.nbytes for _, module in modules(block)
               for slots in (module._parameters, module._buffers)
               for value in slots.values() if value is not None)


def _path(reference: Any) -> Optional[str]:
    """Of a file that ComfyUI holds open: an object with a name, or the system's number for it."""
    if not isinstance(reference, int):
        name = getattr(reference, "name", None)
        return os.fspath(name) if isinstance(name, (str, os.PathLike)) else None
    try:
        name = os.readlink(f"/proc/self/fd/{reference}")
        if os.path.samestat(os.fstat(reference), os.stat(name)):
            return name
    except OSError:  # another system's number, or a file that is not there any more
        pass
    return None


def _file_slice(value: torch.Tensor) -> Optional[Tuple[str, int]]:
    """Where a tensor lies in its checkpoint, if ComfyUI says so."""
    found = getattr(value.untyped_storage(), "_comfy_tensor_file_slice", None)
    if found is None or value.storage_offset() or found.size != value.nbytes:
        return None
    path = _path(found.file_ref)
    return None if path is None else (path, found.offset)


def _plain(value: torch.Tensor) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Capture:
    """Reads one block after the other off a patcher's model."""

    def __init__(self, patcher: Any, from_files: bool) -> None:
        self._patcher = patcher
        self._from_files = from_files

    def block(self, path: str, block: torch.nn.Module) -> Block:
        tensors: List[shoal.Tensor] = []
        entries: List[Entry] = []
        for inside, module in modules(block):
            prefix = f"{path}.{inside}" if inside else path
            for slots in (module._parameters, module._buffers):
                for name, value in slots.items():
                    if value is not None:
                        self._add(f"{prefix}.{name}", module, slots, name, tensors, entries)
        if not tensors:
            raise Refused(f"{path} has no weights to stream")
        return Block(tensors, entries)

    def _add(self, key: str, module: torch.nn.Module, slots: Dict[str, Any], name: str,
             tensors: List[shoal.Tensor], entries: List[Entry]) -> None:
        if not _plain(slots[name]) and not is_traceable_wrapper_subclass(slots[name]):
            raise Refused(f"{key} is a {type(slots[name]).__name__}, whose bytes shoal cannot "
                          "ship: load the model from safetensors instead, or turn the node off")
        value = self._value(key, module, slots[name], name)
        if value.numel() == 0:  # nothing to ship
            still = value.to(self._patcher.load_device)
            entries.append(Entry(module, slots, name, 0, lambda _: still))
        elif _plain(value):
            tensors.append(self._tensor(key, value))
            entries.append(Entry(module, slots, name, 1, _builder(value)))
        else:
            names, context = value.__tensor_flatten__()
            inner = [getattr(value, one) for one in names]
            tensors += [self._tensor(f"{key}.{one}", part) for one, part in zip(names, inner)]
            entries.append(Entry(module, slots, name, len(inner),
                                 _wrapper_builder(value, names, context, inner)))

    def _value(self, key: str, module: torch.nn.Module, value: torch.Tensor,
               name: str) -> torch.Tensor:
        """The weight as it is computed with."""
        if getattr(value, "is_meta", False):  # ComfyUI's zeros, not made yet
            value = torch.zeros(value.shape, dtype=value.dtype)
        if key in self._patcher.patches:
            if self._from_files:
                raise Refused(f"tiering 'ram_disk': {key} is patched (by a LoRA), and its file has "
                              "it as it was. Choose 'ram', or stream a model that is not patched")
            value = self._patcher.patch_weight_to_device(
                key, device_to=self._patcher.load_device, return_weight=True)
        dtype = getattr(module, f"{name}_comfy_model_dtype", None)
        if dtype is not None and _plain(value) and value.is_floating_point():
            value = value.to(dtype=dtype)
        return value.detach()

    def _tensor(self, key: str, value: torch.Tensor) -> shoal.Tensor:
        found = _file_slice(value) if self._from_files else None
        held = value.to("cpu").contiguous()
        if self._patcher.weight_inplace_update and held.data_ptr() == value.data_ptr():
            held = held.clone()  # or what is read later may have been written to
        # A view of bytes has a name in safetensors whatever the type is.
        described = shoal.torch.tensor(key, held.reshape(-1).view(torch.uint8)
                                       if held.dtype not in shoal.torch.DTYPES.values() else held)
        if found is None:
            return described
        return shoal.Tensor(key, described.dtype, described.nbytes, path=found[0], offset=found[1],
                            shape=described.shape)


def _builder(value: torch.Tensor) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    dtype, shape = value.dtype, tuple(value.shape)

    def build(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        part = parts[0]
        return part if part.dtype == dtype else part.view(dtype).view(shape)
    return build


def _wrapper_builder(value: torch.Tensor, names: Sequence[str], context: Any,
                     inner: Sequence[torch.Tensor]) -> Callable[..., torch.Tensor]:
    """For quantised tensors: the same wrapper around parts that lie on the device."""
    kind, size, stride = type(value), value.size(), value.stride()
    builders = [_builder(part) for part in inner]

    def build(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        held = {name: make((part,)) for name, make, part in zip(names, builders, parts)}
        return kind.__tensor_unflatten__(held, context, size, stride)
    return build


@contextlib.contextmanager
def swapped(block: Block, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Puts what was shipped in the place of the block's own weights, and these back in the end.

    The module's dictionary is written, not Parameter.data: quantised tensors do not allow that, and
    no parameter that ComfyUI knows may point into a slot when the block is through.
    """
    own = [(entry, entry.slots[entry.name]) for entry in block.entries]
    try:
        at = 0
        for entry in block.entries:
            value = entry.build(tensors[at:at + entry.count])
            if entry.slots is entry.module._parameters:
                value = torch.nn.Parameter(value, requires_grad=False)
            entry.slots[entry.name] = value
            at += entry.count
        yield
    finally:
        for entry, value in own:
            entry.slots[entry.name] = value
