"""The decision a layer waits for: take up the routing, schedule, update the cache, find slots,
write the plan. Compiled, over the buffer; in stages where a policy in Python stands between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.slots import admit, open_slots, shield
from moesaic.policies.cache.rules import observe
from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import SCRATCH_ROWS
from moesaic.policies.schedule.rules import decide as apply_schedule
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
    s: Ints,
    step: int,
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float32],
) -> None:
    """What the router said, into the buffer."""
    s[at.STEP], s[at.LAYER] = step, layer
    s[at.TOKENS], s[at.USED_RANKS] = experts.shape
    s[at.RANKS] = ranked.shape[1]
    ids, ranks, given = (
        at.ints(s, at.EXPERT_IDS), at.ints(s, at.RANKED_IDS), at.floats(s, at.SCORES),
    )  # fmt: skip
    chosen, order, values = experts.ravel(), ranked.ravel(), scores.ravel()
    for i in range(len(chosen)):
        ids[i] = chosen[i]
    for i in range(len(order)):
        ranks[i] = order[i]
        given[i] = values[i]


@compiled
def fill_view(
    s: Ints,
    resident: NDArray[np.uint8],
    held: Ints,
    occupied: int,
    gpu_busy_ns: int,
    cpu_busy_ns: int,
    link_busy_ns: int,
) -> None:
    """What is where and who is busy, into the buffer; what is under way is written by itself."""
    present, flat = at.octets(s, at.RESIDENT), resident.ravel()
    for i in range(len(flat)):
        present[i] = flat[i]
    at.ints(s, at.HELD)[:] = held
    s[at.OCCUPIED] = occupied
    s[at.GPU_BUSY_NS], s[at.CPU_BUSY_NS] = gpu_busy_ns, cpu_busy_ns
    s[at.LINK_BUSY_NS] = link_busy_ns


@compiled
def take_up(s: Ints) -> None:
    """The layer as a schedule sees it: active experts by load, when each is there, busy lanes."""
    experts, layer, passed = s[at.EXPERTS], s[at.LAYER], s[at.DECISION_NS]
    table = at.ints(s, at.TABLE).reshape(3, experts)
    resident = at.octets(s, at.RESIDENT)[layer * experts : (layer + 1) * experts]
    chosen = at.ints(s, at.EXPERT_IDS)[: s[at.TOKENS] * s[at.USED_RANKS]]
    s[at.ACTIVE] = gather(chosen, resident, table, at.ints(s, at.LOADS))
    _count_routed(s, table)
    flights = at.ints(s, at.FLIGHTS)
    for flight in range(s[at.NUM_FLIGHTS]):
        if flights[3 * flight] != layer:
            continue
        for i in range(s[at.ACTIVE]):
            if table[EXPERT, i] == flights[3 * flight + 1]:
                table[READY, i] = max(flights[3 * flight + 2] - passed, 1)
    lanes = at.ints(s, at.LANES)
    lanes[GPU_FREE] = max(s[at.GPU_BUSY_NS] - passed, 0)
    lanes[CPU_FREE] = max(s[at.CPU_BUSY_NS] - passed, 0)
    lanes[LINK_FREE] = max(s[at.LINK_BUSY_NS] - passed, 0)
    lanes[CPU_FIRST], lanes[TRANSFER] = s[at.CPU_FIRST_NS], s[at.TRANSFER_NS]
    lanes[CPU_SLOWED] = s[at.CPU_SLOWED_BY]
    s[at.MOVES] = s[at.MOVES_COST_NS] = 0  # so far; not every step looks ahead


@compiled
def _count_routed(s: Ints, table: Ints) -> None:
    """For later runs, see expert_profile.py."""
    routed, base = at.ints(s, at.ROUTED), s[at.LAYER] * s[at.EXPERTS]
    if s[at.LAYER] == 0:
        s[at.ROUTED_TOKENS] += s[at.TOKENS]
    for i in range(s[at.ACTIVE]):
        routed[base + table[EXPERT, i]] += table[LOAD, i]


@compiled
def prefer_valuable(s: Ints) -> None:
    """Of experts with equal loads the more valuable first: the schedule moves them rather than
    others, and what is moved may stay."""
    experts, base = s[at.EXPERTS], s[at.LAYER] * s[at.EXPERTS]
    table = at.ints(s, at.TABLE).reshape(3, experts)
    values = at.floats(s, at.VALUES)[base : base + experts]
    for i in range(1, s[at.ACTIVE]):
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
def schedule(s: Ints) -> None:
    """The compiled schedule's assignment; see schedule/rules.py for where it is written. One with
    transfers must be better than the best without by more than demanding them costs."""
    _apply(s)
    if s[at.CPU_SLOWED_BY] == 0 or s[at.DEMAND_MORE_NS] == 0:
        return
    shape = SCRATCH_ROWS, s[at.EXPERTS] + 4
    assigned, moving = at.ints(s, at.ASSIGNED), at.ints(s, at.ASSIGNED_MOVING)
    if assigned.reshape(shape)[3, 2] == 0:
        return
    moving[:] = assigned
    lanes = at.ints(s, at.LANES)
    lanes[TRANSFER] = NEVER
    _apply(s)
    lanes[TRANSFER] = s[at.TRANSFER_NS]
    without, demanding = assigned.reshape(shape)[3, 3], moving.reshape(shape)[3, 3]
    if demanding + s[at.DEMAND_MORE_NS] < without:
        assigned[:] = moving


@compiled
def _apply(s: Ints) -> None:
    experts = s[at.EXPERTS]
    apply_schedule(
        s[at.SCHEDULE_RULE],
        s[at.ACTIVE],
        at.ints(s, at.TABLE).reshape(3, experts),
        at.ints(s, at.COSTS).reshape(2, s[at.COST_TOKENS]),
        at.ints(s, at.LANES),
        at.ints(s, at.ASSIGNED).reshape(SCRATCH_ROWS, experts + 4),
    )


@compiled
def update_cache(s: Ints) -> None:
    """The compiled cache sees the routing."""
    layers, experts, tokens, ranks = s[at.LAYERS], s[at.EXPERTS], s[at.TOKENS], s[at.RANKS]
    used = s[at.USED_RANKS]
    planes = s[at.CACHE_MEMORY + 1] // (layers * experts)
    observe(
        s[at.CACHE_RULE],
        s[at.LAYER],
        at.ints(s, at.EXPERT_IDS)[: tokens * used].reshape(tokens, used),
        at.ints(s, at.RANKED_IDS)[: tokens * ranks].reshape(tokens, ranks),
        at.floats(s, at.SCORES)[: tokens * ranks].reshape(tokens, ranks),
        at.floats(s, at.VALUES).reshape(layers, experts),
        at.floats(s, at.CACHE_MEMORY).reshape(planes, layers, experts),
        at.floats(s, at.CACHE_NUMBERS),
    )


@compiled
def write_plan(s: Ints) -> int:
    """Find slots for what is moved, and write the whole plan; returns its length in words.

    A moved expert is kept if it is worth a slot, else staged for this layer."""
    experts, layer = s[at.EXPERTS], s[at.LAYER]
    assigned = at.ints(s, at.ASSIGNED).reshape(SCRATCH_ROWS, experts + 4)
    on_gpu, on_cpu, moved = assigned[3, 0], assigned[3, 1], assigned[3, 2]
    open_slots(s)
    plan = at.ints(s, at.PLAN)
    plan[0], plan[1], plan[2], plan[3] = on_gpu, on_cpu, moved, assigned[3, 3]
    end = at.PLAN_HEADER
    for i in range(on_gpu):
        shield(s, layer, assigned[0, i])
        plan[end + i] = assigned[0, i]
    end += on_gpu
    for i in range(on_cpu):
        plan[end + i] = assigned[1, i]
    end += on_cpu
    values = at.floats(s, at.VALUES)
    for i in range(moved):
        expert, move = assigned[2, i], plan[end : end + at.MOVE_WORDS]
        worth = np.inf if s[at.ADMITS_ALWAYS] else values[layer * experts + expert]
        if s[at.FIXED_CACHE] or not admit(s, layer, expert, worth, move):
            move[0], move[1], move[2], move[3], move[4] = layer, expert, -1, -1, 0
        end += at.MOVE_WORDS
    s[at.NUM_TRANSFERS] = moved
    return int(end)


@compiled
def decide(s: Ints) -> int:
    """The whole decision, where schedule and cache are compiled; the plan's length in words."""
    take_up(s)
    update_cache(s)
    if s[at.CPU_SLOWED_BY]:  # a later copy of the same expert would slow the CPU down again
        prefer_valuable(s)
    schedule(s)
    return write_plan(s)
