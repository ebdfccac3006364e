"""Slot accounting while one plan is made: what is free, who must go, who may not.

GPU memory is one slab of slots. With `per_layer` every layer has its own share of them and
evicts only its own experts; otherwise all layers compete."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.plan import Transfer
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
        self.per_layer = per_layer
        share = [slots // layers + (layer < slots % layers) for layer in range(layers)]
        self.quota = np.array(share, dtype=np.int64)
        self._shield = np.zeros((layers, experts), dtype=np.uint8)
        self._shielded: list[ExpertId] = []

    def open(self, view: View) -> None:
        for expert in self._shielded:
            self._shield[expert] = 0
        self._shielded.clear()
        self._view = view
        self._occupied = view.occupied
        self._held: dict[int, int] = {}
        for flight in view.in_flight:
            self.shield(flight.layer, flight.expert)

    def shield(self, layer: int, expert: int) -> None:
        self._shield[layer, expert] = 1
        self._shielded.append(ExpertId(layer, expert))

    def shield_all(self, layer: int, experts: NDArray[np.int64]) -> None:
        for expert in experts.ravel().tolist():
            self.shield(layer, expert)

    def admit(
        self, layer: int, expert: int, values: NDArray[np.float64], worth: float
    ) -> Transfer | None:
        """A transfer that keeps the expert, or None where it may not displace anybody.

        It takes a free slot, or the place of the cheapest resident that is worth less."""
        held = self._held.get(layer)
        if held is None:
            held = int(self._view.held[layer])
        full = held >= self.quota[layer] if self.per_layer else self._occupied >= self._slots
        victim = None
        if full:
            first, last = (layer, layer + 1) if self.per_layer else (0, self._layers)
            index = _cheapest(values, self._view.resident, self._shield, first, last)
            if index < 0:
                return None
            victim = ExpertId(*divmod(index, self._experts))
            if values[victim] >= worth:
                return None
            self.shield(*victim)
        self._held[layer] = held + 1 - (victim is not None and victim.layer == layer)
        if victim is not None and victim.layer != layer:
            at_victim = self._held.get(victim.layer, int(self._view.held[victim.layer]))
            self._held[victim.layer] = at_victim - 1
        self._occupied += victim is None
        self.shield(layer, expert)
        return Transfer(layer, expert, victim, True)
