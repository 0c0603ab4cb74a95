"""Stores for PyTorch: blocks of tensors in, tensors on the device out, in memory that is torch's.

Only for those who import it: the rest of the package knows nothing of torch.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Tuple

try:
    import torch
except ImportError as error:
    raise ImportError("shoal.torch is for PyTorch, which is not installed: pip install torch, or "
                      "use shoal.Store") from error

from . import store
from .store import Blocks, Tensor

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}
# What safetensors calls it: this torch's own, which may not know the newer ones.
DTYPES = {name: getattr(torch, own) for name, own in _NAMES.items() if hasattr(torch, own)}
_OWN = {dtype: name for name, dtype in DTYPES.items()}

_ALIGNMENT_BYTES = 4096


def tensor(name: str, source: torch.Tensor) -> Tensor:
    """A contiguous CPU tensor for a store, which keeps it until it is loaded."""
    if source.device.type != "cpu" or not source.is_contiguous():
        raise ValueError(f"tensor {name}: give a contiguous tensor on the CPU")
    if source.dtype not in _OWN:
        raise ValueError(f"tensor {name}: {source.dtype} has no name in safetensors")
    return Tensor(name, _OWN[source.dtype], source.numel() * source.element_size(),
                  data=source.data_ptr(), shape=tuple(source.shape), owner=source)


class Store(store.Store):
    """A store whose blocks are tensors on `device`, ordered by torch's current stream.

    Tensors without a shape come as vectors. What block() gives is a view of the store's memory:
    it is gone when the with block ends.
    """

    def __init__(self, blocks: Blocks, *, device: Any = "cuda", **options: Any) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._memory: Optional[torch.Tensor] = None
        self._views = [[self._view(described) for described in tensors] for _, tensors in blocks]
        super().__init__(blocks, device=str(self._device), **options)

    @staticmethod
    def _view(described: Tensor) -> Tuple[int, torch.dtype, Tuple[int, ...]]:
        """What becomes of a tensor's bytes: not the tensor itself, whose memory is let go."""
        if described.dtype not in DTYPES:
            raise ValueError(f"tensor {described.name}: torch has no {described.dtype}")
        shape = (-1,) if described.shape is None else described.shape
        return described.nbytes, DTYPES[described.dtype], shape

    def _stream(self) -> int:
        if self._device.type != "cuda":
            return 0
        return torch.cuda.current_stream(self._device).cuda_stream

    def resume(self) -> None:
        """Takes device memory from torch. Begins to read, if it never did."""
        if self._memory is not None:
            return
        needed = self.device_bytes
        memory = torch.empty(needed + _ALIGNMENT_BYTES, dtype=torch.uint8, device=self._device)
        memory = memory.narrow(0, -memory.data_ptr() % _ALIGNMENT_BYTES, needed)
        if self._device.type == "cuda":
            # Torch's earlier work may still use what its allocator hands out again.
            torch.cuda.current_stream(self._device).synchronize()
        super().resume(memory.data_ptr(), owner=memory)
        self._memory = memory

    def suspend(self) -> None:
        """Waits for what is under way and gives the device's memory back to torch."""
        self._memory = None
        super().suspend()

    def close(self) -> None:
        self._memory = None
        super().close()

    @contextlib.contextmanager
    def block(self, index: int) -> Iterator[List[torch.Tensor]]:
        """The tensors of a block, in a with block."""
        with super().block(index, self._stream()) as addresses:
            start = self._memory.data_ptr()
            yield [self._memory.narrow(0, address - start, size).view(dtype).view(shape)
                   for address, (size, dtype, shape) in zip(addresses, self._views[index])]
