"""Memories as expert slots: which experts are where, which are in flight, how many slots are taken.
Bookkeeping that all bodies share; the bytes are theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moesaic.core.layer_plan import Move
from moesaic.core.offloading import IN_VRAM, AcceleratorMemory
from moesaic.core.routing import ExpertId
from moesaic.core.topology import WHOLE, Topology

UNLIMITED = 1 << 60  # slots of a memory that is the experts' home: comparisons need no special case


class Residency(AcceleratorMemory):
    """`slots[m]` is how many whole experts memory m holds; None makes it a home, where every
    expert lies whole for ever. A few staging places for experts used once come on top.

    A move takes its slots when it starts: its victim is gone from then on. Slots are counted in
    `topology.units`, so that a stripe takes less than a whole expert."""

    def __init__(
        self, topology: Topology, layers: int, experts: int, slots: Sequence[int | None]
    ) -> None:
        assert len(slots) == len(topology.memories), "slots for every memory"
        self.topology = topology
        units, memories = topology.units, len(topology.memories)
        counts = [UNLIMITED if count is None else count * units for count in slots]
        self.memory_slots: NDArray[np.int64] = np.array(counts, dtype=np.int64)
        self.memory_held: NDArray[np.int64] = np.zeros((memories, layers), dtype=np.int64)
        self.memory_occupied: NDArray[np.int64] = np.zeros(memories, dtype=np.int64)
        shape = (len(topology.placements), layers, experts)
        self.located: NDArray[np.uint8] = np.zeros(shape, dtype=np.uint8)
        self.clear()

    def clear(self) -> None:
        """Nothing lies anywhere but at home."""
        self.memory_held[:], self.memory_occupied[:] = 0, 0
        for at, placement in enumerate(self.topology.placements):
            (first, *_) = self.topology.memories_of[at]
            home = placement.layout == WHOLE and self.memory_slots[first] == UNLIMITED
            self.located[at] = home

    def place(self, experts: list[ExpertId], placement: int = IN_VRAM) -> None:
        """The initial placement."""
        for expert in experts:
            assert not self.located[placement][expert], f"{expert} is placed twice"
            self.located[placement][expert] = 1
            self._take(placement, expert.layer, 1)

    def start(self, move: Move) -> None:
        if move.victim is not None:
            self._leave(move.destination, ExpertId(*move.victim))
        if move.keep:
            self._take(move.destination, move.layer, 1)

    def complete(self, move: Move) -> None:
        if move.keep:
            self.located[move.destination, move.layer, move.expert] = 1
        if move.leaves:
            self._leave(move.source, ExpertId(move.layer, move.expert))

    def _leave(self, placement: int, expert: ExpertId) -> None:
        assert self.located[placement][expert], f"{expert} is not there to leave"
        self.located[placement][expert] = 0
        self._take(placement, expert.layer, -1)

    def _take(self, placement: int, layer: int, count: int) -> None:
        units = count * self.topology.units_in(placement)
        for memory in self.topology.memories_of[placement]:
            self.memory_held[memory, layer] += units
            self.memory_occupied[memory] += units
            taken, slots = int(self.memory_occupied[memory]), int(self.memory_slots[memory])
            name = self.topology.memories[memory].name
            assert 0 <= taken <= slots, f"{taken} of {slots} slots of {name} taken"
