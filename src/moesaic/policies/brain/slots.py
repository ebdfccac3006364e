"""Slot accounting while one plan is made: what is free, who must go, who may not.

GPU memory is one slab of slots. With a pool per layer every layer has its own share of them and
evicts only its own experts; with a global pool all layers compete. Compiled, over the buffer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import fields as at
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

_UNKNOWN = -2  # a layer's victim, not looked for yet; -1: nobody may go


@compiled
def open_slots(s: Ints) -> None:
    """Begin a plan: nothing is added yet, and every resident may go. Who is not resident, under way
    or added by this plan, is no victim and needs no shield."""
    at.octets(s, at.SHIELD)[:] = 0
    at.ints(s, at.SLOTS_HELD)[:] = at.ints(s, at.HELD)
    at.ints(s, at.VICTIMS)[:] = _UNKNOWN
    s[at.SLOTS_TAKEN] = s[at.OCCUPIED]


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
    """The cheapest of these layers. While one plan is made, who is resident and what it is worth
    stay as they are: what was found for a layer holds until it is shielded."""
    experts, known = s[at.EXPERTS], at.ints(s, at.VICTIMS)
    values, shielded = at.floats(s, at.VALUES), at.octets(s, at.SHIELD)
    resident = at.octets(s, at.RESIDENT)
    best = -1
    for layer in range(first, last):
        if known[layer] == _UNKNOWN or (known[layer] >= 0 and shielded[known[layer]]):
            start = layer * experts
            known[layer] = cheapest(values, resident, shielded, start, start + experts)
        if known[layer] >= 0 and (best < 0 or values[known[layer]] < values[best]):
            best = known[layer]
    return int(best)


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
