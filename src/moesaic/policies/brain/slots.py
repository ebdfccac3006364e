"""Slot accounting while one plan is made: what is free, who must go, who may not.

GPU memory is one slab of slots. With a pool per layer every layer has its own share of them and
evicts only its own experts; with a global pool all layers compete. Compiled, over the buffer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import fields as at
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints


@compiled
def open_slots(s: Ints) -> None:
    """Begin a plan: nothing is added yet, and every resident may go. Who is not resident, under way
    or added by this plan, is no victim and needs no shield."""
    at.octets(s, at.SHIELD)[:] = 0
    at.ints(s, at.SLOTS_HELD)[:] = at.ints(s, at.HELD)
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
def admit(s: Ints, layer: int, expert: int, worth: float, move: Ints) -> bool:
    """Find the expert a slot: a free one, or that of the cheapest resident that is worth less.

    Writes the move, and says whether there is one."""
    experts = s[at.EXPERTS]
    held, quota = at.ints(s, at.SLOTS_HELD), at.ints(s, at.QUOTA)
    full = s[at.SLOTS_TAKEN] >= s[at.SLOTS]
    first, last = 0, s[at.LAYERS] * experts
    if not s[at.GLOBAL_POOL]:  # other layers may hold more than their share from the beginning
        full = full or held[layer] >= quota[layer]
        first, last = layer * experts, (layer + 1) * experts
    victim = -1
    if full:
        values, shielded = at.floats(s, at.VALUES), at.octets(s, at.SHIELD)
        victim = cheapest(values, at.octets(s, at.RESIDENT), shielded, first, last)
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
