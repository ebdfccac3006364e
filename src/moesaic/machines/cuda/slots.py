"""Expert slots in device memory: one slab, so that kernels and copies address any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moesaic.core.routing import ExpertId
from moesaic.machines.cuda.streams import Mark
from moesaic.machines.real.copy_engine import Slot
from moesaic.machines.real.slot_table import SlotTable


@dataclass(slots=True, eq=False)
class DeviceSlot(Slot):
    """`holds` is true once what was submitted has ended. `read` is after the kernels that read the
    block last: no copy may overwrite it before."""

    read: Mark | None = None


class DeviceSlots(SlotTable[DeviceSlot]):
    """`count` slots for resident experts, and `staging` more for experts used once."""

    def __init__(self, count: int, staging: int, block_bytes: int, device: str) -> None:
        self.slab = torch.zeros((count + staging, block_bytes), dtype=torch.uint8, device=device)
        every = [DeviceSlot(block) for block in self.slab]
        super().__init__(every[:count])
        self.count, self.staged = count, every[count:]
        self._next = 0

    def numbers(self, layers: int, experts: int) -> list[int]:
        """By `layer * experts + expert` the slot's number, or -1."""
        number_of = {id(slot): number for number, slot in enumerate(self._slots)}
        found = [-1] * (layers * experts)
        for (layer, expert), slot in self._slot_of.items():
            found[layer * experts + expert] = number_of[id(slot)]
        return found

    def hold(self, numbers: Sequence[int], experts: int) -> None:
        """The slots hold what another machine has put there; rebuild the table afterwards."""
        for slot in self._slots:
            slot.holds = slot.read = None
        for index, number in enumerate(numbers):
            if number >= 0:
                self._slots[number].holds = ExpertId(*divmod(index, experts))

    def staging(self) -> DeviceSlot:
        """The next one for an expert used once; it must have been read by all that will."""
        slot = self.staged[self._next]
        self._next = (self._next + 1) % len(self.staged)
        return slot
