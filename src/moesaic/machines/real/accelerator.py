"""An accelerator: memory of its own for some experts, a worker that computes them, a link.

The emulated one is a second arena in main memory, a thread and throttled copies, so that caching,
prefetching, eviction and synchronisation happen for real on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId
from moesaic.machines.real.copy_engine import CopyEngine, LinkSpeed, Slot
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import ThreadLane

STAGING = 2  # experts used once are double-buffered: one computes while the next arrives


class EmulatedAccelerator:
    """`slots` for resident experts, and `STAGING` more for experts used once."""

    def __init__(self, slots: int, block_bytes: int, link: LinkSpeed, threads: int = 1) -> None:
        self.slots = slots
        self.lane = ThreadLane("accelerator", threads)
        self.link = CopyEngine(link)
        arena = torch.zeros((slots + STAGING, block_bytes), dtype=torch.uint8)
        self._slots = [Slot(block) for block in arena[:slots]]
        self._staging = list(arena[slots:])
        self._staged = 0
        self._free = self._slots[::-1]
        self._slot_of: dict[ExpertId, Slot] = {}

    def block(self, layer: int, expert: int) -> torch.Tensor:
        """Of an expert that has a slot."""
        return self._slot_of[ExpertId(layer, expert)].block

    def staging(self) -> torch.Tensor:
        """The next staging buffer, for an expert used once."""
        self._staged = (self._staged + 1) % STAGING
        return self._staging[self._staged]

    def targets(self, transfers: Sequence[Move]) -> list[Slot]:
        """The slots they would take if they started in this order. Changes nothing."""
        free = iter(reversed(self._free))
        return [next(free) if t.victim is None else self._slot_of[t.victim] for t in transfers]

    def enter(self, transfer: Move) -> Slot:
        """The expert takes its victim's slot, or a free one."""
        victim = transfer.victim
        slot = self._free.pop() if victim is None else self._slot_of.pop(victim)
        self._slot_of[ExpertId(transfer.layer, transfer.expert)] = slot
        return slot

    def leave(self, expert: ExpertId) -> None:
        """Free the expert's slot."""
        self._free.append(self._slot_of.pop(expert))

    def rebuild(self) -> list[ExpertId]:
        """Rebuild the slot table from what the slots hold. Returns the resident experts. No copy
        may be in flight."""
        self._slot_of = {slot.holds: slot for slot in self._slots if slot.holds is not None}
        taken = {id(slot) for slot in self._slot_of.values()}
        self._free = [slot for slot in reversed(self._slots) if id(slot) not in taken]
        return list(self._slot_of)

    def filled(self, store: ExpertStore) -> list[torch.Tensor]:
        """Blocks with weights in them, for measuring."""
        for buffer, block in zip(self._staging, store.some_blocks(STAGING), strict=False):
            buffer.copy_(block)
        return [*(slot.block for slot in self._slot_of.values()), *self._staging]

    def close(self) -> None:
        self.link.close()
        self.lane.close()
