"""The decision a layer waits for: take up the routing, schedule, update the cache, find slots,
write the plan. Compiled; in stages where a policy in Python stands between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain.slots import admit, open_slots
from moesaic.policies.compiled import compiled
from moesaic.policies.records import (
    MOVE_WORDS,
    PLAN_HEADER,
    CacheState,
    Costs,
    Decision,
    Inputs,
    Learned,
    Setup,
    State,
)
from moesaic.policies.rule_calls import observe
from moesaic.policies.schedule.assignment import assign
from moesaic.policies.timelines import (
    CPU_FIRST,
    CPU_FREE,
    CPU_SLOWED,
    EXPERT,
    GPU_FREE,
    LINK_FREE,
    LOAD,
    READY,
    TRANSFER,
    Ints,
    gather,
)

NEVER = 1 << 40  # nanoseconds


@compiled
def fill_routing(
    inputs: Inputs,
    step: int,
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float32],
) -> None:
    """What the router said."""
    inputs.step, inputs.layer = step, layer
    inputs.tokens, inputs.used_ranks = experts.shape
    inputs.ranks = ranked.shape[1]
    ids, ranks, given = (
        inputs.expert_ids, inputs.ranked_ids, inputs.scores,
    )  # fmt: skip
    chosen, order, values = experts.ravel(), ranked.ravel(), scores.ravel()
    for i in range(len(chosen)):
        ids[i] = chosen[i]
    for i in range(len(order)):
        ranks[i] = order[i]
        given[i] = values[i]


@compiled
def fill_view(
    inputs: Inputs,
    resident: NDArray[np.uint8],
    held: Ints,
    occupied: int,
    gpu_busy_ns: int,
    cpu_busy_ns: int,
    link_busy_ns: int,
) -> None:
    """What is where and who is busy; what is under way is written by itself."""
    for at in range(len(resident)):
        now, given = inputs.resident[at], resident[at]
        for expert in range(len(now)):
            now[expert] = given[expert]
    inputs.held[:] = held
    inputs.occupied = occupied
    inputs.gpu_busy_ns, inputs.cpu_busy_ns = gpu_busy_ns, cpu_busy_ns
    inputs.link_busy_ns = link_busy_ns


@compiled
def take_up(s: State) -> None:
    """The layer as a schedule sees it: active experts by load, when each is there, busy lanes."""
    layer, passed = s.inputs.layer, s.costs.decision_ns
    table, resident = s.decision.table, s.inputs.resident[layer]
    chosen = s.inputs.expert_ids[: s.inputs.tokens * s.inputs.used_ranks]
    s.decision.active = gather(chosen, resident, table, s.decision.loads)
    _count_routed(s.inputs, s.decision)
    flights = s.inputs.flights
    for flight in range(s.inputs.num_flights):
        if flights[flight, 0] != layer:
            continue
        for i in range(s.decision.active):
            if table[EXPERT, i] == flights[flight, 1]:
                table[READY, i] = max(flights[flight, 2] - passed, 1)
    lanes = s.decision.lanes
    lanes[GPU_FREE] = max(s.inputs.gpu_busy_ns - passed, 0)
    lanes[CPU_FREE] = max(s.inputs.cpu_busy_ns - passed, 0)
    lanes[LINK_FREE] = max(s.inputs.link_busy_ns - passed, 0)
    lanes[CPU_FIRST], lanes[TRANSFER] = s.costs.cpu_first_ns, s.costs.transfer_ns
    lanes[CPU_SLOWED] = s.costs.cpu_slowed_by
    s.ahead.moves = s.ahead.moves_cost_ns = 0  # so far; not every step looks ahead


@compiled
def _count_routed(inputs: Inputs, decision: Decision) -> None:
    """Count routed experts for later runs, see expert_profile.py."""
    routed, table = decision.routed[inputs.layer], decision.table
    if inputs.layer == 0:
        decision.routed_tokens += inputs.tokens
    for i in range(decision.active):
        routed[table[EXPERT, i]] += table[LOAD, i]


@compiled
def prefer_valuable(inputs: Inputs, decision: Decision, cache: CacheState) -> None:
    """Put the more valuable of experts with equal loads first: the schedule moves them rather than
    others, and what is moved may stay."""
    table, values = decision.table, cache.values[inputs.layer]
    for i in range(1, decision.active):
        j = i
        while (
            j > 0
            and table[LOAD, j - 1] == table[LOAD, j]
            and values[table[EXPERT, j - 1]] < values[table[EXPERT, j]]
        ):
            for row in range(3):
                table[row, j - 1], table[row, j] = table[row, j], table[row, j - 1]
            j -= 1


@compiled
def schedule(setup: Setup, costs: Costs, decision: Decision, learned: Learned) -> None:
    """The compiled schedule's assignment; schedule/assignment.py says where it is written. One
    with transfers must be better than the best without by more than demanding them costs."""
    _apply(setup, costs, decision)
    if costs.cpu_slowed_by == 0 or learned.demand_more_ns == 0:
        return
    assigned, moving = decision.assigned, decision.assigned_moving
    if assigned[3, 2] == 0:
        return
    moving[:] = assigned
    lanes = decision.lanes
    lanes[TRANSFER] = NEVER
    _apply(setup, costs, decision)
    lanes[TRANSFER] = costs.transfer_ns
    if moving[3, 3] + learned.demand_more_ns < assigned[3, 3]:
        assigned[:] = moving


@compiled
def _apply(setup: Setup, costs: Costs, decision: Decision) -> None:
    table, lanes, assigned = decision.table, decision.lanes, decision.assigned
    assign(setup.schedule_rule, decision.active, table, costs.tables, lanes, assigned)


@compiled
def update_cache(setup: Setup, inputs: Inputs, cache: CacheState) -> None:
    """The compiled cache sees the routing."""
    tokens, used, ranks = inputs.tokens, inputs.used_ranks, inputs.ranks
    observe(
        setup.cache_rule,
        inputs.layer,
        inputs.expert_ids[: tokens * used].reshape(tokens, used),
        inputs.ranked_ids[: tokens * ranks].reshape(tokens, ranks),
        inputs.scores[: tokens * ranks].reshape(tokens, ranks),
        cache.values,
        cache.memory,
        cache.numbers,
    )


@compiled
def write_plan(s: State) -> int:
    """Find slots for what is moved, and write the whole plan; returns its length in words.

    A moved expert is kept if it is worth a slot, else staged for this layer."""
    layer, assigned = s.inputs.layer, s.decision.assigned
    on_gpu, on_cpu, moved = assigned[3, 0], assigned[3, 1], assigned[3, 2]
    open_slots(s.setup, s.inputs, s.slots)
    plan = s.decision.plan
    plan[0], plan[1], plan[2], plan[3] = on_gpu, on_cpu, moved, assigned[3, 3]
    end, shielded = PLAN_HEADER, s.slots.shield[layer]
    for i in range(on_gpu):
        shielded[assigned[0, i]] = 1
        plan[end + i] = assigned[0, i]
    end += on_gpu
    for i in range(on_cpu):
        plan[end + i] = assigned[1, i]
    end += on_cpu
    values = s.cache.values[layer]
    for i in range(moved):
        expert, move = assigned[2, i], plan[end : end + MOVE_WORDS]
        worth = np.inf if s.setup.admits_always else values[expert]
        if s.setup.fixed_cache or not admit(
            s.setup, s.inputs, s.slots, s.cache, layer, expert, worth, move
        ):
            move[0], move[1], move[2], move[3], move[4] = layer, expert, -1, -1, 0
        end += MOVE_WORDS
    s.decision.num_transfers = moved
    return int(end)


@compiled
def decide(s: State) -> int:
    """The whole decision, where schedule and cache are compiled; the plan's length in words."""
    take_up(s)
    update_cache(s.setup, s.inputs, s.cache)
    if s.costs.cpu_slowed_by:  # a later copy of the same expert would slow the CPU down again
        prefer_valuable(s.inputs, s.decision, s.cache)
    schedule(s.setup, s.costs, s.decision, s.learned)
    return write_plan(s)
