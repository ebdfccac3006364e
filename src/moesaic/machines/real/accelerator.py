"""An accelerator: memory of its own for some experts, a worker that computes them, a link.

The emulated one is a second arena in main memory, a thread and throttled copies, so that caching,
prefetching, eviction and joining happen for real on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.core.plan import Transfer
from moesaic.core.routing import ExpertId
from moesaic.machines.real.copies import CopyEngine, LinkSpeed
from moesaic.machines.real.lane import ThreadLane
from moesaic.machines.real.store import ExpertStore

STAGING = 2  # experts used once are double-buffered: one computes while the next arrives


class EmulatedAccelerator:
    """`slots` places for experts that stay, and `STAGING` more for those used once."""

    def __init__(self, slots: int, block_bytes: int, link: LinkSpeed, threads: int = 1) -> None:
        self.slots = slots
        self.lane = ThreadLane("accelerator", threads)
        self.link = CopyEngine(link)
        arena = torch.zeros((slots + STAGING, block_bytes), dtype=torch.uint8)
        self._places = list(arena)
        self._staged = 0
        self._free = list(reversed(range(slots)))
        self._slot_of: dict[ExpertId, int] = {}

    def block(self, layer: int, expert: int) -> torch.Tensor:
        """Of an expert that has a slot."""
        return self._places[self._slot_of[ExpertId(layer, expert)]]

    def staging(self) -> torch.Tensor:
        """The next place for an expert that is used once."""
        self._staged = (self._staged + 1) % STAGING
        return self._places[self.slots + self._staged]

    def targets(self, transfers: Sequence[Transfer]) -> list[torch.Tensor]:
        """Where they would go, if they began in this order. Changes nothing."""
        free = iter(reversed(self._free))
        slots = [next(free) if t.victim is None else self._slot_of[t.victim] for t in transfers]
        return [self._places[slot] for slot in slots]

    def enter(self, transfer: Transfer) -> torch.Tensor:
        """The expert takes its victim's slot, or a free one."""
        victim = transfer.victim
        slot = self._free.pop() if victim is None else self._slot_of.pop(victim)
        self._slot_of[ExpertId(transfer.layer, transfer.expert)] = slot
        return self._places[slot]

    def leave(self, expert: ExpertId) -> None:
        """Its slot is free: nobody takes it at once."""
        self._free.append(self._slot_of.pop(expert))

    def filled(self, store: ExpertStore) -> list[torch.Tensor]:
        """Places with weights in them, for measuring."""
        for place, block in zip(
            self._places[self.slots :], store.some_blocks(STAGING), strict=False
        ):
            place.copy_(block)
        return [
            *(self._places[slot] for slot in self._slot_of.values()),
            *self._places[self.slots :],
        ]

    def close(self) -> None:
        self.link.close()
        self.lane.close()
