"""Promotions: experts that ran on the CPU and are worth a slot. Compiled, over the buffer."""

from __future__ import annotations

import numpy as np

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.contention import worth_less_cost
from moesaic.policies.brain.slots import admit
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import MAX_PROPOSED
from moesaic.policies.schedule.base import SCRATCH_ROWS
from moesaic.policies.timelines import Ints

# What the CPU has just computed lies in its caches, and these answer the link at half its speed
# while they serve the CPU worse (docs/contention.md): such experts wait for so many layers.
MISSED_LAYERS = 2
_LAYER, _COUNT, _FIRST = 0, 1, 2  # in a row of MISSED: layer, how many experts, the experts
_CHEAP = 20  # a promotion may delay the next layer by one twentieth of its transfer


@compiled
def promote(s: Ints, found: int) -> int:
    """Experts that had to run on the CPU and are worth more than a resident one, best first,
    in what link time is left; returns how many moves there are now."""
    if not s[at.PROMOTE]:
        return found
    delays = at.ints(s, at.DELAYS)
    moves = at.ints(s, at.BACKGROUND).reshape(MAX_PROPOSED, at.MOVE_WORDS)
    cheap = _cheap_moves(s, found)
    missed = at.ints(s, at.SCRATCH)[: s[at.EXPERTS] + 2]
    _candidates(s, missed, found)
    layer, count = missed[_LAYER], missed[_COUNT]
    base, missed = layer * s[at.EXPERTS], missed[_FIRST:]
    values = at.floats(s, at.VALUES)[base : base + s[at.EXPERTS]]
    for _ in range(min(cheap, count)):
        best = -1
        for i in range(count):
            if missed[i] >= 0 and (best < 0 or values[missed[i]] > values[missed[best]]):
                best = i
        expert = missed[best]
        missed[best] = -1
        worth = np.inf if s[at.ADMITS_ALWAYS] else values[expert]
        if s[at.CPU_SLOWED_BY]:
            worth = worth_less_cost(s, values, expert, delays[found + 1] - delays[found])
        if not admit(s, layer, expert, worth, moves[found]):
            return found
        found += 1
    return found


@compiled
def _cheap_moves(s: Ints, found: int) -> int:
    """How many more moves hardly delay the next layer; where contention counts, each has to be
    worth its delay instead."""
    if s[at.CPU_SLOWED_BY]:
        return int(s[at.MAX_BACKGROUND] - found)
    delays, allowed = at.ints(s, at.DELAYS), s[at.TRANSFER_NS] // _CHEAP
    cheap = 0
    for i in range(found, s[at.MAX_BACKGROUND]):
        cheap += delays[i + 1] - delays[i] <= allowed
    return cheap


@compiled
def _candidates(s: Ints, missed: Ints, found: int) -> None:
    """Experts in the CPU's queue, now or where contention counts some layers ago, that are neither
    resident nor under way, nor moved by this plan and the `found` moves in the background."""
    assigned = at.ints(s, at.ASSIGNED).reshape(SCRATCH_ROWS, s[at.EXPERTS] + 4)
    missed[_LAYER], missed[_COUNT] = s[at.LAYER], assigned[3, 1]
    missed[_FIRST : _FIRST + assigned[3, 1]] = assigned[1, : assigned[3, 1]]
    if s[at.CPU_SLOWED_BY]:
        _exchange(at.ints(s, at.MISSED).reshape(MISSED_LAYERS, s[at.EXPERTS] + 2), missed)
    layer, given = missed[_LAYER], missed[_COUNT]
    resident, flights = at.octets(s, at.RESIDENT), at.ints(s, at.FLIGHTS)
    count = 0
    for i in range(given):
        expert = missed[_FIRST + i]
        missing = not resident[layer * s[at.EXPERTS] + expert]
        for j in range(s[at.NUM_FLIGHTS]):
            if flights[3 * j] == layer and flights[3 * j + 1] == expert:
                missing = False
        if missing and not _planned(s, layer, expert, found):
            missed[_FIRST + count] = expert
            count += 1
    missed[_COUNT] = count


@compiled
def _planned(s: Ints, layer: int, expert: int, found: int) -> bool:
    """Whether this plan moves the expert already, or has just evicted it: in a model of few layers
    the one of some layers ago may be this one, or a forecast one."""
    assigned = at.ints(s, at.ASSIGNED).reshape(SCRATCH_ROWS, s[at.EXPERTS] + 4)
    moves = at.ints(s, at.BACKGROUND).reshape(MAX_PROPOSED, at.MOVE_WORDS)
    demanded = at.ints(s, at.PLAN)[at.PLAN_HEADER + assigned[3, 0] + assigned[3, 1] :]
    planned = False
    for i in range(s[at.NUM_TRANSFERS]):
        move = demanded[i * at.MOVE_WORDS : (i + 1) * at.MOVE_WORDS]
        planned |= move[0] == layer and move[1] == expert
        planned |= move[2] == layer and move[3] == expert
    for i in range(found):
        planned |= moves[i, 0] == layer and moves[i, 1] == expert
        planned |= moves[i, 2] == layer and moves[i, 3] == expert
    return planned


@compiled
def _exchange(kept: Ints, missed: Ints) -> None:
    """This layer's go to the end of the queue, and the first of it comes out."""
    for i in range(len(missed)):
        first = kept[0, i]
        for row in range(MISSED_LAYERS - 1):
            kept[row, i] = kept[row + 1, i]
        kept[MISSED_LAYERS - 1, i] = missed[i]
        missed[i] = first
