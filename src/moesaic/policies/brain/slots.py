"""Slot accounting while one plan is made: what is free, who must go, who may not.

GPU memory is one slab of slots. With a pool per layer every layer has its own share of them and
evicts only its own experts; with a global pool all layers compete. Compiled, over the buffer.

Each layer's cheapest resident is kept from plan to plan: a layer's values change when it is routed,
and its residents seldom. So a global pool compares one expert per layer, not all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import fields as at
from moesaic.policies.cache.base import PYTHON
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

# A layer's victim: not looked for yet, or an expert's flat index plus two; one: none may go.
_UNKNOWN, _FIRST = 0, 2


@compiled
def open_slots(s: Ints) -> None:
    """Begin a plan: nothing is added yet, and every resident may go. Who is not resident, under way
    or added by this plan, is no victim and needs no shield."""
    at.octets(s, at.SHIELD)[:] = 0
    at.ints(s, at.SLOTS_HELD)[:] = at.ints(s, at.HELD)
    _forget_changed_layers(s)
    at.ints(s, at.VICTIMS)[:] = at.ints(s, at.KEPT_VICTIMS)
    s[at.SLOTS_TAKEN] = s[at.OCCUPIED]


@compiled
def _forget_changed_layers(s: Ints) -> None:
    """The layer that was just routed has other values, as all may have of a cache in Python; and
    whichever machine moved experts, the residents of a layer that it changed differ."""
    kept, experts = at.ints(s, at.KEPT_VICTIMS), s[at.EXPERTS]
    kept[s[at.LAYER]] = _UNKNOWN
    if s[at.CACHE_RULE] == PYTHON or not s[at.GLOBAL_POOL]:
        kept[:] = _UNKNOWN  # with a pool per layer few layers are asked for
        return
    now, then = at.octets(s, at.RESIDENT), at.octets(s, at.RESIDENT_THEN)
    for layer in range(s[at.LAYERS]):
        first = layer * experts
        differs = 0
        for i in range(first, first + experts):
            differs |= now[i] ^ then[i]
        if differs:
            kept[layer] = _UNKNOWN
            then[first : first + experts] = now[first : first + experts]


@compiled
def shield(s: Ints, layer: int, expert: int) -> None:
    """Until the next plan this expert may not be evicted."""
    at.octets(s, at.SHIELD)[layer * s[at.EXPERTS] + expert] = 1


@compiled
def cheapest(
    values: NDArray[np.float64],
    resident: NDArray[np.uint8],
    shielded: NDArray[np.uint8],
    first: int,
    last: int,
) -> int:
    """The least valuable resident between two flat indices that may go, or -1."""
    best = -1
    lowest = 0.0
    for i in range(first, last):
        if resident[i] and not shielded[i] and (best < 0 or values[i] < lowest):
            best = i
            lowest = values[i]
    return best


@compiled
def victim_of(s: Ints, first: int, last: int) -> int:
    """The cheapest of these layers, as a flat index, or -1."""
    known, values = at.ints(s, at.VICTIMS), at.floats(s, at.VALUES)
    shielded = at.octets(s, at.SHIELD)
    best = -1
    for layer in range(first, last):
        if known[layer] == _UNKNOWN:
            _find_victim(s, layer)
        if known[layer] >= _FIRST and shielded[known[layer] - _FIRST]:
            start = layer * s[at.EXPERTS]
            known[layer] = _FIRST + cheapest(
                values, at.octets(s, at.RESIDENT), shielded, start, start + s[at.EXPERTS]
            )
        victim = known[layer] - _FIRST
        if victim >= 0 and (best < 0 or values[victim] < values[best]):
            best = victim
    return int(best)


@compiled
def _find_victim(s: Ints, layer: int) -> None:
    """Whatever this plan shields: the next one may keep it."""
    values, resident = at.floats(s, at.VALUES), at.octets(s, at.RESIDENT)
    start, best = layer * s[at.EXPERTS], -1
    for i in range(start, start + s[at.EXPERTS]):
        if resident[i] and (best < 0 or values[i] < values[best]):
            best = i
    at.ints(s, at.VICTIMS)[layer] = at.ints(s, at.KEPT_VICTIMS)[layer] = best + _FIRST


@compiled
def admit(s: Ints, layer: int, expert: int, worth: float, move: Ints) -> bool:
    """Find the expert a slot: a free one, or that of the cheapest resident that is worth less.

    Writes the move, and says whether there is one."""
    experts = s[at.EXPERTS]
    held, quota = at.ints(s, at.SLOTS_HELD), at.ints(s, at.QUOTA)
    full = s[at.SLOTS_TAKEN] >= s[at.SLOTS]
    first, last = 0, s[at.LAYERS]
    if not s[at.GLOBAL_POOL]:  # other layers may hold more than their share from the beginning
        full = full or held[layer] >= quota[layer]
        first, last = layer, layer + 1
    victim = -1
    if full:
        values, shielded = at.floats(s, at.VALUES), at.octets(s, at.SHIELD)
        victim = victim_of(s, first, last)
        if victim < 0 or values[victim] >= worth:
            return False
        shielded[victim] = 1
        held[victim // experts] -= 1
        s[at.SLOTS_TAKEN] -= 1
    held[layer] += 1
    s[at.SLOTS_TAKEN] += 1
    move[0], move[1] = layer, expert
    move[2] = victim // experts if victim >= 0 else -1
    move[3] = victim % experts if victim >= 0 else -1
    move[4] = 1
    return True
