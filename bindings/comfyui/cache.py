"""disk_cache: a file for weights that no checkpoint has as they are shipped.

It has no name in its folder: the system keeps it for as long as it is open, and gives its room back
when the host tier is gone, however the process ends. So nothing is ever left behind, nothing has to
be cleaned up later, and two processes cannot meet in it. libshoal, which opens files by path, finds
it among the process's open ones.
"""

from __future__ import annotations

import os
import tempfile

import torch

from .options import Refused, gib, shown

ALIGNMENT_BYTES = 4096  # so that every tensor can be read past the page cache


class Cache:
    def __init__(self, folder: str) -> None:
        self.nbytes = 0
        folder = self._folder = os.path.expanduser(folder)
        if not os.path.isdir(folder):
            what = ("a link to nothing" if os.path.islink(folder) and not os.path.exists(folder)
                    else "no folder" if os.path.exists(folder) else "not there")
            raise Refused(f"disk_cache: {shown(folder)} is {what}: make a folder, or name another")
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        except OSError as error:
            raise Refused(f"disk_cache: no file can be written in {shown(folder)}: "
                          f"{error.strerror}. Name another folder") from None

    @property
    def path(self) -> str:
        """For as long as it is open."""
        return f"/proc/self/fd/{self._file.fileno()}"

    def write(self, tensor: torch.Tensor) -> int:
        """Adds a contiguous tensor in host memory; where it begins."""
        offset = -(-self.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
        try:
            self._file.seek(offset)
            while data:
                data = data[self._file.write(data):]
        except OSError as error:
            raise self._failed(error) from None
        self.nbytes = offset + tensor.nbytes
        return offset

    def flush(self) -> None:
        """Writes out what was added, and lets it go from the system's own cache."""
        try:
            os.fdatasync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from None
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _failed(self, error: OSError) -> Refused:
        return Refused(f"disk_cache: after {gib(self.nbytes)} of the streamed blocks, "
                       f"{shown(self._folder)} takes no more: {error.strerror}. Make room there, "
                       "or name another folder")

    def close(self) -> None:
        self._file.close()
