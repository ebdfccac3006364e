"""Slot accounting while one plan is made: what is free, who must go, who may not.

GPU memory is one slab of slots. With `per_layer` every layer has its own share of them and
evicts only its own experts; otherwise all layers compete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId
from moesaic.core.view import View
from moesaic.policies.compiled import compiled


@compiled
def _cheapest(
    values: NDArray[np.float64],
    resident: NDArray[np.uint8],
    shield: NDArray[np.uint8],
    first: int,
    last: int,
) -> int:
    """Flat index of the least valuable unshielded resident in layers first..last-1, or -1."""
    experts = values.shape[1]
    best = -1
    lowest = 0.0
    for layer in range(first, last):
        for expert in range(experts):
            if resident[layer, expert] and not shield[layer, expert]:
                value = values[layer, expert]
                if best < 0 or value < lowest:
                    best = layer * experts + expert
                    lowest = value
    return best


class Ledger:
    """Turns wishes ("this expert on the GPU") into transfers with victims that are legal
    together. `open` begins a plan; `shield` protects experts until the next `open`."""

    def __init__(self, layers: int, experts: int, slots: int, per_layer: bool) -> None:
        self._layers, self._experts, self._slots = layers, experts, slots
        self._per_layer = per_layer
        self._quota = [slots // layers + (layer < slots % layers) for layer in range(layers)]
        self._shield = np.zeros((layers, experts), dtype=np.uint8)

    def open(self, view: View) -> None:
        self._shield.fill(0)
        self._resident = view.resident
        self._occupied = view.occupied
        self._held = view.held.tolist()
        for flight in view.in_flight:
            self._shield[flight.layer, flight.expert] = 1

    def look_at(self, resident: NDArray[np.uint8]) -> None:
        """Go on with this picture of who is there: the machine may have started to change."""
        self._resident = resident

    def shield(self, layer: int, experts: Sequence[int] | NDArray[np.int64]) -> None:
        self._shield[layer, experts] = 1

    def admit(
        self, layer: int, expert: int, values: NDArray[np.float64], worth: float
    ) -> Move | None:
        """A transfer that keeps the expert, or None where it may not displace anybody.

        It takes a free slot, or the place of the cheapest resident that is worth less."""
        full = self._occupied >= self._slots
        first, last = 0, self._layers
        if self._per_layer:  # other layers may hold more than their share from the beginning
            full = full or self._held[layer] >= self._quota[layer]
            first, last = layer, layer + 1
        victim = None
        if full:
            index = _cheapest(values, self._resident, self._shield, first, last)
            if index < 0:
                return None
            victim = ExpertId(*divmod(index, self._experts))
            if values[victim] >= worth:
                return None
            self._shield[victim] = 1
            self._held[victim.layer] -= 1
            self._occupied -= 1
        self._held[layer] += 1
        self._occupied += 1
        self._shield[layer, expert] = 1
        return Move(layer, expert, victim, True)
