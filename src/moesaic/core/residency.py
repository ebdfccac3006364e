"""GPU memory as expert slots: who is there, who is on the way, how much is taken. Bookkeeping that
all bodies share; the bytes are theirs."""

from __future__ import annotations

import numpy as np

from moesaic.core.layer_plan import Transfer
from moesaic.core.routing import ExpertId


class Residency:
    """`slots` experts that stay, plus a few staging places for experts used once.

    A transfer takes its place when it starts: its victim is gone from then on."""

    def __init__(self, layers: int, experts: int, slots: int) -> None:
        self.slots = slots
        self.resident = np.zeros((layers, experts), dtype=np.uint8)
        self.held = np.zeros(layers, dtype=np.int64)
        self.occupied = 0

    def place(self, experts: list[ExpertId]) -> None:
        """The initial placement."""
        for expert in experts:
            assert not self.resident[expert], f"{expert} is placed twice"
            self.resident[expert] = 1
            self._take(expert.layer, 1)

    def start(self, transfer: Transfer) -> None:
        if transfer.victim is not None:
            assert self.resident[transfer.victim], f"{transfer.victim} is not there to evict"
            self.resident[transfer.victim] = 0
            self._take(transfer.victim.layer, -1)
        if transfer.keep:
            self._take(transfer.layer, 1)

    def complete(self, transfer: Transfer) -> None:
        if transfer.keep:
            self.resident[transfer.layer, transfer.expert] = 1

    def _take(self, layer: int, count: int) -> None:
        self.held[layer] += count
        self.occupied += count
        assert 0 <= self.occupied <= self.slots, f"{self.occupied} of {self.slots} slots taken"
