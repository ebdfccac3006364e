"""Which blocks of the KV cache a sequence has, in order: a row per slot, and its copy where kernels
read it.

On a GPU the copy is made when a step is about to read it. Blocks of new tokens come with the step's
own inputs (`machines/captured/step_inputs.py`); what is uploaded here is what a sequence begins
with, on a stream of its own, since a step that is launched ahead may be waiting on another one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


class BlockTable:
    def __init__(self, slots: int, of_slot: int, blocks: int, device: str) -> None:
        """At first every slot has blocks of its own, side by side, if there are as many."""
        own = blocks >= slots * of_slot
        rows = np.arange(slots * of_slot) if own else np.zeros(slots * of_slot)
        self.host: NDArray[np.int32] = rows.reshape(slots, of_slot).astype(np.int32)
        self.device = torch.from_numpy(self.host)  # on the CPU the same memory
        self._copied: list[int] | None = None  # how many of a row the device has
        if device != "cpu":
            self.device = self.device.to(device)
            self._copied = [of_slot] * slots if own else [0] * slots
            self._stream = torch.cuda.Stream()
            self._row = torch.zeros(of_slot, dtype=torch.int32, pin_memory=True)

    def changed(self, slot: int, first: int) -> None:
        """The row is another one from its block number `first` on."""
        if self._copied is not None:
            self._copied[slot] = min(self._copied[slot], first)

    def upload(self, slot: int, blocks: int) -> None:
        """The device reads the first so many blocks as they are now."""
        if self._copied is None or self._copied[slot] >= blocks:
            return
        self._row.numpy()[:blocks] = self.host[slot, :blocks]
        with torch.cuda.stream(self._stream):
            self.device[slot, :blocks].copy_(self._row[:blocks], non_blocking=True)
        self._stream.synchronize()
        self._copied[slot] = blocks

    def placed(self, slot: int, blocks: int) -> None:
        """A step has brought the row up to here."""
        if self._copied is not None:
            self._copied[slot] = max(self._copied[slot], blocks)
