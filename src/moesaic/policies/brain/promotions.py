"""Promotions: experts that ran on the CPU and are worth a slot. Compiled."""

from __future__ import annotations

import numpy as np

from moesaic.policies.brain.contention import worth_less_cost
from moesaic.policies.brain.slots import admit
from moesaic.policies.compiled import compiled
from moesaic.policies.records import (
    MISSED_LAYERS,
    MOVE_WORDS,
    PLAN_HEADER,
    Ahead,
    Costs,
    Decision,
    State,
)
from moesaic.policies.timelines import Ints

_LAYER, _COUNT, _FIRST = 0, 1, 2  # in a row of `ahead.missed`: layer, how many experts, the experts
_CHEAP = 20  # a promotion may delay the next layer by one twentieth of its transfer


@compiled
def promote(s: State, found: int) -> int:
    """Experts that had to run on the CPU and are worth more than a resident one, best first,
    in what link time is left; returns how many moves there are now."""
    if not s.setup.promote:
        return found
    delays = s.ahead.delays
    moves = s.ahead.background
    cheap = _cheap_moves(s.costs, s.ahead, found)
    missed = s.ahead.candidates
    _candidates(s, missed, found)
    layer, count = missed[_LAYER], missed[_COUNT]
    missed, values = missed[_FIRST:], s.cache.values[layer]
    for _ in range(min(cheap, count)):
        best = -1
        for i in range(count):
            if missed[i] >= 0 and (best < 0 or values[missed[i]] > values[missed[best]]):
                best = i
        expert = missed[best]
        missed[best] = -1
        worth = np.inf if s.setup.admits_always else values[expert]
        if s.costs.cpu_slowed_by:
            cost = delays[found + 1] - delays[found]
            worth = worth_less_cost(s.setup, s.costs, s.inputs, values, expert, cost)
        if not admit(s.setup, s.inputs, s.slots, s.cache, layer, expert, worth, moves[found]):
            return found
        found += 1
    return found


@compiled
def _cheap_moves(costs: Costs, ahead: Ahead, found: int) -> int:
    """How many more moves hardly delay the next layer; where contention counts, each has to be
    worth its delay instead."""
    if costs.cpu_slowed_by:
        return int(ahead.max_background - found)
    delays, allowed = ahead.delays, costs.transfer_ns // _CHEAP
    cheap = 0
    for i in range(found, ahead.max_background):
        cheap += delays[i + 1] - delays[i] <= allowed
    return cheap


@compiled
def _candidates(s: State, missed: Ints, found: int) -> None:
    """Experts in the CPU's queue, now or where contention counts some layers ago, that are neither
    resident nor under way, nor moved by this plan and the `found` moves in the background."""
    assigned = s.decision.assigned
    missed[_LAYER], missed[_COUNT] = s.inputs.layer, assigned[3, 1]
    missed[_FIRST : _FIRST + assigned[3, 1]] = assigned[1, : assigned[3, 1]]
    if s.costs.cpu_slowed_by:
        _exchange(s.ahead.missed, missed)
    layer, given = missed[_LAYER], missed[_COUNT]
    resident, flights = s.inputs.resident[layer], s.inputs.flights
    count = 0
    for i in range(given):
        expert = missed[_FIRST + i]
        missing = not resident[expert]
        for j in range(s.inputs.num_flights):
            if flights[j, 0] == layer and flights[j, 1] == expert:
                missing = False
        if missing and not _planned(s.decision, s.ahead, layer, expert, found):
            missed[_FIRST + count] = expert
            count += 1
    missed[_COUNT] = count


@compiled
def _planned(decision: Decision, ahead: Ahead, layer: int, expert: int, found: int) -> bool:
    """Whether this plan moves the expert already, or has just evicted it: in a model of few layers
    the one of some layers ago may be this one, or a forecast one."""
    assigned = decision.assigned
    moves = ahead.background
    demanded = decision.plan[PLAN_HEADER + assigned[3, 0] + assigned[3, 1] :]
    planned = False
    for i in range(decision.num_transfers):
        move = demanded[i * MOVE_WORDS : (i + 1) * MOVE_WORDS]
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
