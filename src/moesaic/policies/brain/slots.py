"""Slot accounting while one plan is made: what is free, who must go, who may not.

GPU memory is one slab of slots. With a pool per layer every layer has its own share of them and
evicts only its own experts; with a global pool all layers compete. Compiled.

Each layer's cheapest resident is kept from plan to plan: a layer's values change when it is routed,
and its residents seldom. So a global pool compares one expert per layer, not all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled
from moesaic.policies.records import CacheState, Inputs, Setup, SlotState
from moesaic.policies.timelines import Ints

# A layer's victim: not looked for yet, or an expert's number plus two; one: none may go.
_UNKNOWN, _FIRST = 0, 2


@compiled
def open_slots(setup: Setup, inputs: Inputs, slots: SlotState) -> None:
    """Begin a plan: nothing is added yet, and every resident may go. An expert that is
    not resident, under way or added by this plan is no victim and needs no shield."""
    slots.shield[:] = 0
    slots.held[:] = inputs.held
    _forget_changed_layers(setup, inputs, slots)
    slots.victims[:] = slots.kept_victims
    slots.taken = inputs.occupied


@compiled
def _forget_changed_layers(setup: Setup, inputs: Inputs, slots: SlotState) -> None:
    """The layer that was just routed has other values, as all may have of a cache in Python; and
    whichever machine moved experts, the residents of a layer that it changed differ."""
    kept = slots.kept_victims
    kept[inputs.layer] = _UNKNOWN
    if setup.values_change or not setup.global_pool:
        kept[:] = _UNKNOWN  # with a pool per layer few layers are asked for
        return
    for layer in range(setup.layers):
        now, then = inputs.resident[layer], slots.resident_then[layer]
        differs = 0
        for i in range(len(now)):
            differs |= now[i] ^ then[i]
        if differs:
            kept[layer] = _UNKNOWN
            then[:] = now


@compiled
def cheapest(
    values: NDArray[np.float64], resident: NDArray[np.uint8], shielded: NDArray[np.uint8]
) -> int:
    """The least valuable resident of a layer that may go, or -1."""
    best = -1
    lowest = 0.0
    for i in range(len(values)):
        if resident[i] and not shielded[i] and (best < 0 or values[i] < lowest):
            best = i
            lowest = values[i]
    return best


@compiled
def victim_of(
    inputs: Inputs, slots: SlotState, cache: CacheState, first: int, last: int
) -> tuple[int, int]:
    """The cheapest of these layers, as layer and expert; the expert is -1 where none may go."""
    known, best_layer, best = slots.victims, 0, -1
    for layer in range(first, last):
        values, shielded = cache.values[layer], slots.shield[layer]
        if known[layer] == _UNKNOWN:
            _find_victim(inputs, slots, cache, layer)
        if known[layer] >= _FIRST and shielded[known[layer] - _FIRST]:
            known[layer] = _FIRST + cheapest(values, inputs.resident[layer], shielded)
        victim = known[layer] - _FIRST
        if victim >= 0 and (best < 0 or values[victim] < cache.values[best_layer, best]):
            best_layer, best = layer, victim
    return best_layer, best


@compiled
def _find_victim(inputs: Inputs, slots: SlotState, cache: CacheState, layer: int) -> None:
    """Whatever this plan shields: the next one may keep it."""
    values, resident, best = cache.values[layer], inputs.resident[layer], -1
    for i in range(len(values)):
        if resident[i] and (best < 0 or values[i] < values[best]):
            best = i
    slots.victims[layer] = slots.kept_victims[layer] = best + _FIRST


@compiled
def admit(
    setup: Setup, inputs: Inputs, slots: SlotState, cache: CacheState, layer: int, expert: int,
    worth: float, move: Ints,
) -> bool:  # fmt: skip
    """Find the expert a slot: a free one, or that of the cheapest resident that is worth less.

    Writes the move, and says whether there is one."""
    held = slots.held
    full = slots.taken >= setup.slots
    first, last = 0, setup.layers
    if not setup.global_pool:  # other layers may hold more than their share from the beginning
        full = full or held[layer] >= setup.quota[layer]
        first, last = layer, layer + 1
    victim_layer, victim = -1, -1
    if full:
        victim_layer, victim = victim_of(inputs, slots, cache, first, last)
        if victim < 0 or cache.values[victim_layer, victim] >= worth:
            return False
        slots.shield[victim_layer, victim] = 1
        held[victim_layer] -= 1
        slots.taken -= 1
    held[layer] += 1
    slots.taken += 1
    move[0], move[1], move[2], move[3], move[4] = layer, expert, victim_layer, victim, 1
    return True
