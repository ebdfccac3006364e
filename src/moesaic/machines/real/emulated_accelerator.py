"""An accelerator: memory of its own for some experts, a worker that computes them, a link.

The emulated one is a second arena in main memory, a thread and throttled copies, so that caching,
prefetching, eviction and synchronisation happen for real on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.core.layer_plan import Move
from moesaic.machines.accelerators import EMULATED
from moesaic.machines.real.copy_engine import Copy, CopyEngine, LinkSpeed
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import ThreadLane
from moesaic.machines.real.slot_table import Slot, SlotTable

STAGING = EMULATED.staging


class EmulatedAccelerator(SlotTable[Slot]):
    """`slots` for resident experts, and `STAGING` more for experts used once. It is the ledger's
    `Copier`, too: copies run on the thread of its link."""

    def __init__(self, store: ExpertStore, slots: int, link: LinkSpeed, threads: int = 1) -> None:
        self.slots, self._store = slots, store
        self.duration_ns = link.duration_ns(store.kernel.block_bytes)
        self.lane = ThreadLane("accelerator", threads)
        self.link = CopyEngine(link)
        arena = torch.zeros((slots + STAGING, store.kernel.block_bytes), dtype=torch.uint8)
        every = [Slot(block) for block in arena]
        super().__init__(every[:slots], every[slots:])

    def prepare(self, move: Move, slot: Slot, kind: str) -> Copy:
        source = self._store.block(move.layer, move.expert)
        return Copy(move, source, slot.block, kind, slot.read, slot)

    def place(self, copies: Sequence[Copy]) -> None:
        """Place experts by the calling thread, while no other thread copies."""
        for copy in copies:
            copy.perform()

    def demand(self, copies: Sequence[Copy]) -> None:
        self.link.demand(copies)

    def offer(self, copies: Sequence[Copy]) -> None:
        self.link.offer(copies)

    def pump(self, under_way: int) -> None:
        """The link's thread goes on by itself."""

    def recall(self) -> None:
        self.link.cancel_background()

    def halt(self) -> None:
        self.link.halt()

    def times_ns(self, copy: Copy) -> tuple[int, int]:
        return copy.start_ns, copy.end_ns

    def filled(self) -> list[torch.Tensor]:
        """Blocks with weights in them, for measuring."""
        for slot, block in zip(self.staged, self._store.some_blocks(STAGING), strict=False):
            slot.block.copy_(block)
        return [slot.block for slot in (*self._slot_of.values(), *self.staged)]

    def close(self) -> None:
        self.link.close()
        self.lane.close()
