"""Which expert is in which slot of an accelerator's memory, and which slots are free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId
from moesaic.machines.real.copy_engine import Slot

AnySlot = TypeVar("AnySlot", bound=Slot)


class SlotTable(Generic[AnySlot]):
    """Bookkeeping of the driving thread; `Slot.holds` says what is in memory."""

    def __init__(self, slots: Sequence[AnySlot]) -> None:
        self._slots = list(slots)
        self._free = self._slots[::-1]
        self._slot_of: dict[ExpertId, AnySlot] = {}

    def slot(self, layer: int, expert: int) -> AnySlot:
        """Of an expert that has one."""
        return self._slot_of[ExpertId(layer, expert)]

    def block(self, layer: int, expert: int) -> torch.Tensor:
        return self.slot(layer, expert).block

    def targets(self, transfers: Sequence[Move]) -> list[AnySlot]:
        """The slots they would take if they started in this order. Changes nothing."""
        free = iter(reversed(self._free))
        return [next(free) if t.victim is None else self._slot_of[t.victim] for t in transfers]

    def enter(self, transfer: Move) -> AnySlot:
        """The expert takes its victim's slot, or a free one."""
        victim = transfer.victim
        slot = self._free.pop() if victim is None else self._slot_of.pop(victim)
        self._slot_of[ExpertId(transfer.layer, transfer.expert)] = slot
        return slot

    def leave(self, expert: ExpertId) -> None:
        """Free the expert's slot."""
        self._free.append(self._slot_of.pop(expert))

    def rebuild(self) -> list[ExpertId]:
        """Rebuild the table from what the slots hold. Returns the resident experts. No copy may be
        in flight."""
        self._slot_of = {slot.holds: slot for slot in self._slots if slot.holds is not None}
        taken = {id(slot) for slot in self._slot_of.values()}
        self._free = [slot for slot in reversed(self._slots) if id(slot) not in taken]
        return list(self._slot_of)
