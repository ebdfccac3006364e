"""An accelerator: memory of its own for some experts, a worker that computes them, a link.

The emulated one is a second arena in main memory, a thread and throttled copies, so that caching,
prefetching, eviction and synchronisation happen for real on a machine without a GPU.
"""

from __future__ import annotations

import torch

from moesaic.machines.accelerators import EMULATED
from moesaic.machines.real.copy_engine import CopyEngine, LinkSpeed, Slot
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import ThreadLane
from moesaic.machines.real.slot_table import SlotTable

STAGING = EMULATED.staging


class EmulatedAccelerator(SlotTable[Slot]):
    """`slots` for resident experts, and `STAGING` more for experts used once."""

    def __init__(self, slots: int, block_bytes: int, link: LinkSpeed, threads: int = 1) -> None:
        self.slots = slots
        self.lane = ThreadLane("accelerator", threads)
        self.link = CopyEngine(link)
        arena = torch.zeros((slots + STAGING, block_bytes), dtype=torch.uint8)
        super().__init__([Slot(block) for block in arena[:slots]])
        self._staging = list(arena[slots:])
        self._staged = 0

    def staging(self) -> torch.Tensor:
        """The next staging buffer, for an expert used once."""
        self._staged = (self._staged + 1) % STAGING
        return self._staging[self._staged]

    def filled(self, store: ExpertStore) -> list[torch.Tensor]:
        """Blocks with weights in them, for measuring."""
        for buffer, block in zip(self._staging, store.some_blocks(STAGING), strict=False):
            buffer.copy_(block)
        return [*(slot.block for slot in self._slot_of.values()), *self._staging]

    def close(self) -> None:
        self.link.close()
        self.lane.close()
