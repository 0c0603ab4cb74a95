"""What one run of a host tier took, as the clock, torch and the driver say it."""

from __future__ import annotations

import time
from typing import Any, Optional

import torch


class Run:
    """From start to stop. A walk is one call of the model: each of its streamed blocks once."""

    def __init__(self, store: Any, device: torch.device) -> None:
        self._store, self._device = store, device
        self._before = store.stats
        self._last = -1  # block
        self.begun_ns = time.monotonic_ns()  # the clock of the store's trace
        self.seconds = 0.0
        self.walks = 0
        self.copied_bytes = self.read_bytes = 0
        self.wait_seconds = 0.0
        # Of a card only.
        self.torch_bytes: Optional[int] = None  # the most that torch's allocator had given out
        self.used_bytes: Optional[int] = None  # the most in use at a walk's begin, whoever's it is
        self.card_bytes: Optional[int] = None
        self._counted = device.type == "cuda"
        try:
            if self._counted:
                torch.cuda.reset_peak_memory_stats(device)
        except RuntimeError:
            self._counted = False  # an allocator that somebody put in torch's place

    def use(self, index: int) -> None:
        """Before each block."""
        if index <= self._last or self._last < 0:
            self.walks += 1
            self._sample()
        self._last = index

    def _sample(self) -> None:
        if self._device.type == "cuda":
            free, self.card_bytes = torch.cuda.mem_get_info(self._device)
            self.used_bytes = max(self.used_bytes or 0, self.card_bytes - free)

    def ends(self) -> None:
        """While the store still has its device memory. After a failure of the card too."""
        try:
            self._sample()
            if self._counted:
                self.torch_bytes = torch.cuda.max_memory_allocated(self._device)
        except RuntimeError:
            pass  # the run itself says what failed, and the store is to be suspended

    def ended(self) -> None:
        """When it has waited for its work and given that memory back."""
        now, before = self._store.stats, self._before
        self.seconds = (time.monotonic_ns() - self.begun_ns) * 1e-9
        self.copied_bytes = now.copied_bytes - before.copied_bytes
        self.read_bytes = now.read_bytes - before.read_bytes
        self.wait_seconds = now.wait_seconds - before.wait_seconds
