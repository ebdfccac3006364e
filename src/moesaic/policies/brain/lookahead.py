"""What to move while the link idles, thought out while the layer runs. Compiled, over the buffer.

Two stages, so that a body can fill in forecasts between them, and need not where they would not
be used: `begin` learns from the layer and says how many moves there is time for, `finish`
proposes prefetches and promotions and finds them slots."""

from __future__ import annotations

import numpy as np

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.contention import cpu_work, longer_beside
from moesaic.policies.brain.forecasts import (
    complete,
    cut_to_used,
    distance_to,
    expect,
    observe_routing,
    predict,
)
from moesaic.policies.brain.promotions import promote
from moesaic.policies.brain.resting import begin_step
from moesaic.policies.brain.slots import admit
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import (
    IMPACT,
    IMPACT_ROWS,
    MAX_PROPOSED,
    NEXT_LAYER,
    NOTHING,
)
from moesaic.policies.prefetch.impact import mark_coming, prepare_layer, rank_by_impact
from moesaic.policies.prefetch.next_layer import propose_next_layer
from moesaic.policies.schedule.rules import delay_by_link
from moesaic.policies.timelines import CPU_FREE, LINK_FREE, TRANSFER, Ints

_UNIT = 1 << 20  # prices are integers, so that equal runs give equal bits
_MEMORY = 32  # layers


@compiled
def begin(s: Ints) -> int:
    """Learn from the layer just decided; returns how many moves could start before the next
    layer's experts do, or -1 where nothing may move."""
    begin_step(s)
    observe_routing(s)
    s[at.MAX_BACKGROUND] = s[at.MOVES] = s[at.MOVES_COST_NS] = 0
    if s[at.FIXED_CACHE] or not (s[at.PROMOTE] or s[at.LOOKAHEAD]):
        return -1
    price_link(s)
    lanes, assigned = at.ints(s, at.LANES), at.ints(s, at.ASSIGNED)
    estimated = assigned[3 * (s[at.EXPERTS] + 4) + 3]
    s[at.LINK_FREE_NS] = lanes[LINK_FREE] + s[at.NUM_TRANSFERS] * s[at.TRANSFER_NS]
    starts = at.ints(s, at.STARTS)
    for d in range(len(starts)):  # if layers take as long as they did so far
        starts[d] = estimated + s[at.GAP_NS] + d * (s[at.GAP_NS] + s[at.LAYER_NS])
    s[at.MAX_BACKGROUND] = fill_delays(s, starts[0])
    return int(s[at.MAX_BACKGROUND])


@compiled
def price_link(s: Ints) -> None:
    """What would half a transfer's lateness of the link have cost this layer? A background
    transfer that is still under way when the next layer starts makes that layer's own transfers
    wait; layers differ in how much that hurts, so the price is averaged over them."""
    later = at.ints(s, at.LATER_LANES)
    later[:] = at.ints(s, at.LANES)
    later[CPU_FREE] = later[LINK_FREE] = 0
    experts, late = s[at.EXPERTS], max(later[TRANSFER] // 2, 1)
    delay = delay_by_link(
        s[at.SCHEDULE_RULE],
        s[at.ACTIVE],
        at.ints(s, at.TABLE).reshape(3, experts),
        at.ints(s, at.COSTS).reshape(2, s[at.COST_TOKENS]),
        later,
        late,
        at.ints(s, at.SCRATCH).reshape(IMPACT_ROWS, experts),
    )
    s[at.LINK_PRICE_SEEN] = min(s[at.LINK_PRICE_SEEN] + 1, _MEMORY)
    s[at.LINK_PRICE] += (delay * _UNIT // late - s[at.LINK_PRICE]) // s[at.LINK_PRICE_SEEN]


@compiled
def fill_delays(s: Ints, next_start: int) -> int:
    """What 0, 1, 2, ... moves are expected to cost this layer and the next; returns how many can
    start before the next one's experts do."""
    delays, free, transfer = at.ints(s, at.DELAYS), s[at.LINK_FREE_NS], s[at.TRANSFER_NS]
    work = cpu_work(s)
    count = 0
    while count < MAX_PROPOSED and free + count * transfer < next_start:
        count += 1
        end = free + count * transfer
        longer = longer_beside(s, work, end)
        late = max(end - next_start - longer, 0)
        delays[count] = longer + s[at.LINK_PRICE] * late // _UNIT
        if s[at.CPU_SLOWED_BY]:
            delays[count] += s[at.MOVING_MORE_NS]
    return count


@compiled
def finish(s: Ints) -> int:
    """Prefetches, then promotions, into BACKGROUND; returns how many moves."""
    found = 0
    if s[at.LOOKAHEAD] and s[at.MAX_BACKGROUND] > 0 and looks_ahead(s):
        collect_forecasts(s)
        found = admit_proposed(s, propose(s))
        s[at.PREFETCHED] += found
    return count_moves(s, promote(s, found))


@compiled
def looks_ahead(s: Ints) -> bool:
    """Forecasts that are there are used in a rest, too."""
    return bool(s[at.RESTING] == 0 or s[at.FORECASTS] > 0)


@compiled
def count_moves(s: Ints, count: int) -> int:
    """Keeps how many moves there are and what they are expected to cost this layer, for learning
    from it; returns how many."""
    s[at.MOVES] = count
    if count > 0:
        end = s[at.LINK_FREE_NS] + count * s[at.TRANSFER_NS]
        s[at.MOVES_COST_NS] = longer_beside(s, cpu_work(s), end)
    return count


@compiled
def collect_forecasts(s: Ints) -> None:
    """The body's forecasts, or predictions where it has none; what they name may not go. The
    rule NOTHING predicts nothing: it moves what it is given forecasts of."""
    if not s[at.ORACLE]:
        if s[at.PREFETCH_RULE] != NOTHING:
            if s[at.FORECASTS] == 0:
                s[at.FORECASTS] = predict(s)
            elif s[at.RESTING] == 0:
                complete(s)
        cut_to_used(s)
        expect(s, s[at.FORECASTS])
    shapes = at.ints(s, at.FORECAST_SHAPES)
    ids = at.ints(s, at.FORECAST_IDS).reshape(s[at.LOOKAHEAD], s[at.ENTRIES])
    shielded = at.octets(s, at.SHIELD)
    for d in range(s[at.FORECASTS]):
        base = shapes[3 * d] * s[at.EXPERTS]
        for i in range(shapes[3 * d + 1] * shapes[3 * d + 2]):
            if ids[d, i] >= 0:
                shielded[base + ids[d, i]] = 1


@compiled
def propose(s: Ints) -> int:
    """The compiled prefetch policy's proposals into PICKS, as (number of forecast, expert)."""
    if s[at.FORECASTS] == 0:
        return 0
    if s[at.PREFETCH_RULE] == NEXT_LAYER:
        return _propose_of_layer(s, 0, 0)
    if s[at.PREFETCH_RULE] == NOTHING:
        picked = 0
        for d in range(s[at.FORECASTS]):
            picked = _propose_of_layer(s, d, picked)
        return picked
    if s[at.PREFETCH_RULE] == IMPACT:
        return _propose_by_impact(s)
    return 0


@compiled
def _propose_of_layer(s: Ints, number: int, picked: int) -> int:
    """The likeliest of one forecast, after `picked` proposals; returns how many there are now."""
    experts, ahead = s[at.EXPERTS], s[at.LOOKAHEAD]
    shape = at.ints(s, at.FORECAST_SHAPES).reshape(ahead, 3)[number]
    size = shape[1] * shape[2]
    resident = at.octets(s, at.RESIDENT)[shape[0] * experts : (shape[0] + 1) * experts]
    absent = np.zeros(experts, dtype=np.uint8)
    for expert in range(experts):
        absent[expert] = resident[expert] == 0
    flights = at.ints(s, at.FLIGHTS)
    for i in range(s[at.NUM_FLIGHTS]):
        if flights[3 * i] == shape[0]:
            absent[flights[3 * i + 1]] = 0
    picks = at.ints(s, at.PICKS).reshape(MAX_PROPOSED, 2)
    chosen = at.ints(s, at.SCRATCH)[: s[at.MAX_BACKGROUND] - picked]
    ids = at.ints(s, at.FORECAST_IDS).reshape(ahead, s[at.ENTRIES])[number, :size]
    scores = at.floats(s, at.FORECAST_SCORES).reshape(ahead, s[at.ENTRIES])[number, :size]
    more = propose_next_layer(ids, scores, absent, chosen)
    for i in range(more):
        picks[picked + i, 0], picks[picked + i, 1] = number, chosen[i]
    return int(picked + more)


@compiled
def _propose_by_impact(s: Ints) -> int:
    experts, depth, ahead = s[at.EXPERTS], s[at.FORECASTS], s[at.LOOKAHEAD]
    shapes = at.ints(s, at.FORECAST_SHAPES)
    ids = at.ints(s, at.FORECAST_IDS).reshape(ahead, s[at.ENTRIES])
    tables = at.ints(s, at.LATER_TABLES).reshape(ahead, 4, experts)
    counts, weights = at.ints(s, at.LATER_COUNTS), at.floats(s, at.LATER_WEIGHTS)
    starts, by_distance = at.ints(s, at.LATER_STARTS), at.ints(s, at.STARTS)
    resident, flights = at.octets(s, at.RESIDENT), at.ints(s, at.FLIGHTS)
    trust, miss_rate = at.floats(s, at.TRUST), at.floats(s, at.MISS_RATE)[0]
    for d in range(depth):
        layer, size = shapes[3 * d], shapes[3 * d + 1] * shapes[3 * d + 2]
        present = resident[layer * experts : (layer + 1) * experts]
        distance = distance_to(s, at.ints(s, at.FORECAST_STEPS)[d], layer)
        starts[d] = by_distance[distance]
        given = at.floats(s, at.FORECAST_TRUST)[d]
        right = given if given > 0.0 else trust[distance]
        right = 1.0 if s[at.ORACLE] else right
        counts[d], weights[d] = prepare_layer(
            ids[d, :size], present, right, miss_rate, tables[d], at.ints(s, at.LOADS)
        )
        for i in range(s[at.NUM_FLIGHTS]):
            if flights[3 * i] == layer:
                mark_coming(tables[d], counts[d], flights[3 * i + 1])
    return rank_by_impact(
        s[at.SCHEDULE_RULE],
        counts[:depth],
        tables,
        at.ints(s, at.COSTS).reshape(2, s[at.COST_TOKENS]),
        at.ints(s, at.LATER_LANES),
        starts,
        s[at.LINK_FREE_NS],
        at.ints(s, at.DELAYS),
        weights,
        at.ints(s, at.SCRATCH).reshape(IMPACT_ROWS, experts),
        at.ints(s, at.PICKS).reshape(MAX_PROPOSED, 2)[: s[at.MAX_BACKGROUND]],
    )


@compiled
def admit_proposed(s: Ints, picked: int) -> int:
    """Slots for the proposals, best first; what finds none is dropped. Returns how many moves."""
    picks = at.ints(s, at.PICKS).reshape(MAX_PROPOSED, 2)
    shapes = at.ints(s, at.FORECAST_SHAPES)
    moves = at.ints(s, at.BACKGROUND).reshape(MAX_PROPOSED, at.MOVE_WORDS)
    found = 0
    for i in range(min(picked, s[at.MAX_BACKGROUND])):
        found += admit(s, shapes[3 * picks[i, 0]], picks[i, 1], np.inf, moves[found])
    return found


@compiled
def look_ahead(s: Ints) -> int:
    """Both stages, with whatever forecasts the body has filled in; returns how many moves."""
    if begin(s) < 0:
        return 0
    return finish(s)
