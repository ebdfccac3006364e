"""Which expert is in which slot of an accelerator's memory, and which slots are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId


@dataclass(slots=True, eq=False)
class Slot:
    """Memory for one expert. What copies writes `holds`, and None while it copies: it is true even
    where the bookkeeping thread was interrupted. `read` is what was computed from the block last,
    in the form of what copies: no copy may overwrite the block before."""

    block: torch.Tensor
    holds: ExpertId | None = None
    read: Any = None


AnySlot = TypeVar("AnySlot", bound=Slot)


class SlotTable(Generic[AnySlot]):
    """Bookkeeping of the driving thread. `staged` are further slots, for experts used once."""

    def __init__(self, slots: Sequence[AnySlot], staged: Sequence[AnySlot]) -> None:
        self._slots, self.staged = list(slots), list(staged)
        self.count = len(self._slots)
        self._free = self._slots[::-1]
        self._slot_of: dict[ExpertId, AnySlot] = {}
        self._next = 0  # of `staged`

    def slot(self, layer: int, expert: int) -> AnySlot:
        """The slot of an expert that has one."""
        return self._slot_of[ExpertId(layer, expert)]

    def block(self, layer: int, expert: int) -> torch.Tensor:
        return self.slot(layer, expert).block

    def staging(self) -> AnySlot:
        """The next one for an expert used once."""
        slot = self.staged[self._next]
        self._next = (self._next + 1) % len(self.staged)
        return slot

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

    def numbers(self, layers: int, experts: int) -> list[int]:
        """The slot's number by `layer * experts + expert`, or -1."""
        number_of = {id(slot): number for number, slot in enumerate(self._slots)}
        found = [-1] * (layers * experts)
        for (layer, expert), slot in self._slot_of.items():
            found[layer * experts + expert] = number_of[id(slot)]
        return found

    def hold(self, numbers: Sequence[int], experts: int) -> None:
        """The slots hold what another executor has put there; rebuild the table afterwards."""
        for slot in self._slots:
            slot.holds = slot.read = None
        for index, number in enumerate(numbers):
            if number >= 0:
                self._slots[number].holds = ExpertId(*divmod(index, experts))
