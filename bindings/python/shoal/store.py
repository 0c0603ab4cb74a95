"""Stores: the blocks of somebody else's model, shipped to the device a moment before their use.

The arithmetic stays where it is; shoal.torch is this for PyTorch, with tensors for addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
from ctypes import byref
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

from . import _library as c
from ._library import library


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor's bytes, in host memory (`data`) or in a file (`path`, from `offset` on).

    `data` is an address, or an object with a contiguous buffer. They stay unchanged, and an
    address valid, until Store.loaded; a file as long as the store lives. `dtype` is as safetensors
    calls it ("BF16", "F8_E4M3"); other names are shipped as bytes. `shape` is for shoal.torch.
    """

    name: str
    dtype: str
    nbytes: int
    data: Any = None
    path: Optional[Union[str, bytes, os.PathLike]] = None
    offset: int = 0
    shape: Optional[Tuple[int, ...]] = None
    owner: Any = None  # of the memory at an address: kept until it is needed no more


Blocks = Sequence[Tuple[str, Sequence[Tensor]]]


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """What a store takes and did."""

    device_bytes: int  # while it is not suspended
    host_bytes: int
    pinned_bytes: int
    weight_bytes: int  # of all blocks
    walk_copied_bytes: int  # to the device, a walk over all blocks, as planned
    copied_bytes: int
    read_bytes: int
    wait_seconds: float  # the host waited in acquire for weights that were not read yet
    blocks: int
    resident_blocks: int
    packed_blocks: int
    disk_blocks: int
    prefetch_slots: int


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer: from_buffer gives the address of writable buffers only."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


def _address(view: memoryview) -> int:
    """Of a buffer that is contiguous, or else a BufferError; valid while the view is."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), byref(buffer), 0)
    ctypes.pythonapi.PyBuffer_Release(byref(buffer))
    return buffer.buf


def _describe(tensor: Tensor, kept: List[Any]) -> c.StoreTensor:
    """A tensor as C gets it; `kept` gets what its bytes lie in."""
    if (tensor.data is None) == (tensor.path is None):
        raise ValueError(f"tensor {tensor.name}: give either data or a path")
    described = c.StoreTensor()
    c.fill(described, name=tensor.name, dtype=tensor.dtype, path=tensor.path,
           offset=tensor.offset, bytes=tensor.nbytes)
    if isinstance(tensor.data, int):
        c.fill(described, data=tensor.data)
        kept.append(tensor.owner)
    elif tensor.data is not None:
        view = memoryview(tensor.data)
        if view.nbytes != tensor.nbytes:
            raise ValueError(f"tensor {tensor.name}: its buffer has {view.nbytes} bytes, "
                             f"not {tensor.nbytes}")
        described.data = _address(view)
        kept.append(view)
    return described


def _declare() -> None:
    try:
        c.declare(c.STORES)
    except AttributeError:
        raise c.Error(c.Status.UNSUPPORTED, f"{library._name} has no stores: install a libshoal "
                      "with shoal_store_create") from None


class Store(c.Owner):
    """Keeps blocks' weights in host memory or on disk, and brings them to the device in turn.

    Options are those of Model.plan, of the store alone; but `resident_blocks` is 0 unless it is
    given, and AUTO is as many as fit. `block_seconds` is how long a block's arithmetic takes, if
    that is known: the plan then weighs packing. Error with Status.BUDGET if a budget is too small.

        with Store(blocks, device="cuda", vram="2GiB") as store:
            store.resume()
            for index in range(len(blocks)):
                with store.block(index, stream) as addresses:
                    ...  # kernels on `stream` that read tensor t at addresses[t]
    """

    _noun = "store"

    def __init__(self, blocks: Blocks, *, device: Optional[str] = None,
                 vram: Optional[Union[int, str]] = None, ram: Optional[Union[int, str]] = None,
                 resident_blocks: Optional[int] = None, prefetch_slots: Optional[int] = None,
                 buffer: Optional[str] = None, wire: Optional[str] = None,
                 pin: Optional[str] = None, threads: Optional[int] = None,
                 block_seconds: Optional[float] = None,
                 rates: Optional[Union[str, bytes, os.PathLike]] = None,
                 trace: Optional[bool] = None) -> None:
        _declare()
        request, pointer = c.StoreRequest(), ctypes.c_void_p()
        library.shoal_store_request_init(byref(request))
        c.fill(request, device=device, vram=vram, ram=ram, resident_blocks=resident_blocks,
               prefetch_slots=prefetch_slots, buffer=buffer, wire=wire, pin=pin, threads=threads,
               block_seconds=block_seconds, rates=rates, trace=trace)
        self._kept: List[Any] = []  # until it is loaded
        self._lent: List[Any] = []  # until it is suspended
        described = (c.StoreBlock * len(blocks))()
        for block, (name, tensors) in zip(described, blocks):
            block.name = c.text_bytes("a block's name", name)
            block.tensor_count = len(tensors)
            block.tensors = (c.StoreTensor * len(tensors))(
                *(_describe(tensor, self._kept) for tensor in tensors))
        self._counts = [len(tensors) for _, tensors in blocks]
        c.check(library.shoal_store_create, described, len(blocks), byref(request), byref(pointer))
        super().__init__(pointer, library.shoal_store_destroy, kept=(self._kept, self._lent))

    def close(self) -> None:
        """Suspends it, if need be, and forgets everything."""
        super().close()
        self._kept.clear()
        self._lent.clear()

    @property
    def device_bytes(self) -> int:
        """What resume takes on the device."""
        return library.shoal_store_device_bytes(self._open())

    def resume(self, memory: int = 0, owner: Any = None) -> None:
        """Takes device memory, its own, or device_bytes at the address `memory`.

        That is a multiple of 4096, and the caller's again after suspend; `owner` is kept until
        then. Begins to read, if it never did.
        """
        store = self._open()
        self._lent.append(owner)
        try:
            c.check(library.shoal_store_resume, store, memory)
        except BaseException:
            self._lent.pop()
            raise

    def acquire(self, index: int, stream: int = 0) -> List[int]:
        """The addresses of a block's tensors, for work given to `stream` until release.

        `stream` is a CUstream; 0 is the default stream. Blocks are needed in order, walk after
        walk; another order wastes what was fetched ahead. The host does not wait for the device.
        """
        store = self._open()
        if not 0 <= index < len(self._counts):
            raise IndexError(f"there is no block {index}: there are {len(self._counts)}")
        addresses = (ctypes.c_uint64 * self._counts[index])()
        c.check(library.shoal_store_acquire, store, index, stream or None, addresses)
        return list(addresses)

    def release(self, index: int) -> None:
        """Ends the use of a block: before the next acquire."""
        c.check(library.shoal_store_release, self._open(), index)
        if self._kept and index == len(self._counts) - 1:
            self._let_go()

    @contextlib.contextmanager
    def block(self, index: int, stream: int = 0) -> Iterator[List[int]]:
        """acquire and release, as a with block."""
        addresses = self.acquire(index, stream)
        try:
            yield addresses
        finally:
            self.release(index)

    def suspend(self) -> None:
        """Waits for what is under way and gives the device's memory back.

        What waits in host memory stays there. If something had failed it is an Error with
        Status.DEVICE, and suspended all the same. Does nothing if it is suspended.
        """
        store = self._open()
        try:
            c.check(library.shoal_store_suspend, store)
        finally:
            self._lent.clear()

    @property
    def loaded(self) -> bool:
        """Whether the memory that tensors were given in is needed no more. It is let go then.

        Never, for blocks that are read again in every walk or after every resume.
        """
        return self._let_go()

    def _let_go(self) -> bool:
        loaded = library.shoal_store_loaded(self._open())
        if loaded:
            self._kept.clear()
        return loaded

    @property
    def stats(self) -> StoreStats:
        stats = c.StoreStatsStruct()
        library.shoal_store_stats(self._open(), byref(stats))
        return StoreStats(**stats.values(*(f.name for f in dataclasses.fields(StoreStats))))

    def _said(self, text: Optional[bytes]) -> str:
        if text is None:
            raise MemoryError("out of host memory")
        return text.decode()

    @property
    def text(self) -> str:
        """The plan, and what the store did if it has run, as a table for a person."""
        return self._said(library.shoal_store_text(self._open()))

    def write_trace(self, path: Union[str, bytes, os.PathLike]) -> None:
        """Writes what happened when since resume, if it was made with trace=True: Chrome's format.

        While it is suspended. Of a long run it has the last 64 thousand spans.
        """
        c.check(library.shoal_store_write_trace, self._open(), c.text_bytes("path", path))

    def json(self) -> dict[str, Any]:
        """The same as one object."""
        return json.loads(self._said(library.shoal_store_json(self._open())))
