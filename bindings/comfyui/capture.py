"""From ComfyUI's blocks to the bytes that shoal ships, and back to parameters, for as long as a
block runs.

Between them lies what ComfyUI would do to a weight before it computes with it: patch it (LoRA), and
cast it to the model's type. host_format says where: 'compute' does it here, once, and ships the
result; 'storage' ships the weight as it is, and it is done on the device at each use. Either way it
is ComfyUI's own arithmetic on the device that it would use, so that results are those of a model
that was patched before it ran. Quantised tensors are computed with as they are.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import shoal
import shoal.torch
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .cache import Cache
from .options import GIB, Options, Refused
from .patches import Patches, patchable, patched


class Entry(NamedTuple):
    """A parameter or buffer of a block, and which of the shipped tensors it is made from."""

    key: str  # its name in the model, by which it is patched
    module: torch.nn.Module
    slots: Dict[str, Any]  # the module's own _parameters or _buffers
    name: str
    count: int
    build: Callable[[Sequence[torch.Tensor]], torch.Tensor]
    dtype: Optional[torch.dtype]  # that it is cast to before it is computed with


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
    if found is None or value.storage_offset() or found.size != value.nbytes or \
            not value.is_contiguous():
        return None
    path = _path(found.file_ref)
    return None if path is None else (path, found.offset)


def _plain(value: torch.Tensor) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _parts(value: torch.Tensor) -> Dict[str, torch.Tensor]:
    """The tensors whose bytes a quantised one is made of."""
    return {name: getattr(value, name) for name in value.__tensor_flatten__()[0]}


def _addresses(value: torch.Tensor) -> List[int]:
    parts = [value] if _plain(value) else _parts(value).values() if \
        is_traceable_wrapper_subclass(value) else []
    return [part.data_ptr() for part in parts]


@contextlib.contextmanager
def _in_place_of(slots: Dict[str, Any], name: str, value: torch.Tensor) -> Iterator[None]:
    own, slots[name] = slots[name], value
    try:
        yield
    finally:
        slots[name] = own


class Capture:
    """Reads one block after the other off a patcher's model.

    `baked`: patches are applied here, as ever with host_format 'compute'. With a cache, what has no
    place in a checkpoint is written to it and let go, block by block.
    """

    def __init__(self, patcher: Any, options: Options, baked: bool, cache: Optional[Cache]) -> None:
        self._patcher = patcher
        self._options = options
        self._from_files = options.tiering == "ram_disk"
        self._baked = baked
        self._cache = cache
        # Of what is described by its address, with tiering 'ram_disk'.
        self.copied_bytes = 0  # that ComfyUI does not have as well: beside the RAM tier
        self.unfiled_bytes = 0

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
        if self._cache is not None:
            self._cache.flush()
        return Block(tensors, entries)

    def _add(self, key: str, module: torch.nn.Module, slots: Dict[str, Any], name: str,
             tensors: List[shoal.Tensor], entries: List[Entry]) -> None:
        if not _plain(slots[name]) and not is_traceable_wrapper_subclass(slots[name]):
            raise Refused(f"{key} is a {type(slots[name]).__name__}, whose bytes shoal cannot "
                          "ship: load the model from safetensors instead, or turn the node off")
        value = self._value(key, module, slots, name)
        dtype = getattr(module, f"{name}_comfy_model_dtype", None)
        if dtype == value.dtype or not _plain(value) or not value.is_floating_point():
            dtype = None
        if dtype is not None and self._options.host_format == "compute":
            value, dtype = value.to(dtype=dtype), None
        own = _addresses(slots[name])
        if value.numel() == 0:  # nothing to ship
            still = value.to(self._patcher.load_device)
            entries.append(Entry(key, module, slots, name, 0, lambda _: still, dtype))
        elif _plain(value):
            tensors.append(self._tensor(key, value, own))
            entries.append(Entry(key, module, slots, name, 1, _builder(value), dtype))
        else:
            parts = _parts(value)
            tensors += [self._tensor(f"{key}.{one}", part, own) for one, part in parts.items()]
            entries.append(Entry(key, module, slots, name, len(parts),
                                 _wrapper_builder(value, parts), dtype))

    def _value(self, key: str, module: torch.nn.Module, slots: Dict[str, Any],
               name: str) -> torch.Tensor:
        """The weight as it is, or patched."""
        value = slots[name]
        if getattr(value, "is_meta", False):  # ComfyUI's zeros, not made yet
            value = torch.zeros(value.shape, dtype=value.dtype)
        if self._baked and key in self._patcher.patches and patchable(module):
            if self._from_files and self._cache is None:
                raise self._has_no_file(key)
            with _in_place_of(slots, name, value):
                value = patched(self._patcher, key, module, name)
        return value.detach()

    def _has_no_file(self, key: str) -> Refused:
        ways = "give disk_cache, a folder that such weights are written to, or choose tiering 'ram'"
        if self._options.host_format == "compute":
            return Refused(f"tiering 'ram_disk': {key} is patched (by a LoRA), and its file has it "
                           f"as it was. Choose host_format 'storage', which patches it on the "
                           f"device, or {ways}")
        return Refused(f"tiering 'ram_disk': the patches of the streamed blocks are too large to "
                       f"be on the device beside them, and the file has {key} as it was: {ways}")

    def _tensor(self, key: str, value: torch.Tensor, own: Sequence[int]) -> shoal.Tensor:
        found = _file_slice(value) if self._from_files else None
        held = value.to("cpu").contiguous()
        if found is None and self._cache is None and self._patcher.weight_inplace_update and \
                held.data_ptr() in own:
            held = held.clone()  # or what is read later may have been written to
        # A view of bytes has a name in safetensors whatever the type is.
        described = shoal.torch.tensor(key, held.reshape(-1).view(torch.uint8)
                                       if held.dtype not in shoal.torch.DTYPES.values() else held)
        if found is None and self._cache is not None:
            found = self._cache.path, self._cache.write(held)
        if found is None:
            self._count(key, held, own)
            return described
        return shoal.Tensor(key, described.dtype, described.nbytes, path=found[0], offset=found[1],
                            shape=described.shape)

    def _count(self, key: str, held: torch.Tensor, own: Sequence[int]) -> None:
        """What stays in host memory if blocks are read again: within the budget, if it is ours."""
        if not self._from_files:
            return
        self.unfiled_bytes += held.nbytes
        if held.data_ptr() in own:
            return
        self.copied_bytes += held.nbytes
        budget = self._options.ram_budget_gb
        if budget and self.copied_bytes >= budget * GIB:
            raise Refused(f"tiering 'ram_disk': no file has {key} and others as they are computed "
                          f"with, and together they take more than ram_budget_gb {budget:g}: give "
                          "disk_cache, a folder that they are written to, choose host_format "
                          "'storage', or raise the budget")


def _builder(value: torch.Tensor) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    dtype, shape = value.dtype, tuple(value.shape)

    def build(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        part = parts[0]
        return part if part.dtype == dtype else part.view(dtype).view(shape)
    return build


def _wrapper_builder(value: torch.Tensor,
                     parts: Dict[str, torch.Tensor]) -> Callable[..., torch.Tensor]:
    """For quantised tensors: the same wrapper around parts that lie on the device."""
    kind, size, stride = type(value), value.size(), value.stride()
    context = value.__tensor_flatten__()[1]
    builders = {name: _builder(part) for name, part in parts.items()}

    def build(shipped: Sequence[torch.Tensor]) -> torch.Tensor:
        held = {name: make((part,)) for (name, make), part in zip(builders.items(), shipped)}
        return kind.__tensor_unflatten__(held, context, size, stride)
    return build


def _put(entry: Entry, value: torch.Tensor) -> None:
    if entry.slots is entry.module._parameters:
        value = torch.nn.Parameter(value, requires_grad=False)
    entry.slots[entry.name] = value


@contextlib.contextmanager
def swapped(block: Block, tensors: Sequence[torch.Tensor], patches: Patches) -> Iterator[None]:
    """Puts what was shipped in the place of the block's own weights, and these back in the end.

    The module's dictionary is written, not Parameter.data: quantised tensors do not allow that, and
    no parameter that ComfyUI knows may point into a slot when the block is through.
    """
    own = [(entry, entry.slots[entry.name]) for entry in block.entries]
    try:
        at = 0
        for entry in block.entries:
            _put(entry, entry.build(tensors[at:at + entry.count]))
            at += entry.count
        for entry in block.entries:  # what was not done when they were captured
            value = patches.apply(entry.key, entry.module, entry.name)
            if value is not None:
                _put(entry, value)
            if entry.dtype is not None:
                _put(entry, entry.slots[entry.name].to(dtype=entry.dtype))
        yield
    finally:
        for entry, value in own:
            entry.slots[entry.name] = value
