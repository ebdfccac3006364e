"""What to move while the link idles, thought out while the layer runs. Compiled.

Two stages, so that a body can fill in forecasts between them, and need not where they would not
be used: `begin` learns from the layer and says how many moves there is time for, `finish`
proposes prefetches and promotions and finds them slots."""

from __future__ import annotations

import numpy as np

from moesaic.policies.brain.contention import cpu_work, longer_beside
from moesaic.policies.brain.forecasts import (
    complete,
    cut_to_used,
    expect,
    observe_routing,
    predict,
)
from moesaic.policies.brain.promotions import promote
from moesaic.policies.brain.slots import admit
from moesaic.policies.compiled import compiled
from moesaic.policies.records import (
    MAX_PROPOSED,
    Ahead,
    Costs,
    Decision,
    Forecasts,
    Inputs,
    Setup,
    State,
)
from moesaic.policies.rule_calls import propose
from moesaic.policies.schedule.assignment import delay_by_link
from moesaic.policies.timelines import CPU_FREE, LINK_FREE, TRANSFER

_UNIT = 1 << 20  # prices are integers, so that equal runs give equal bits
_MEMORY = 32  # layers


@compiled
def begin(s: State) -> int:
    """Learn from the layer just decided; returns how many moves could start before the next
    layer's experts do, or -1 where nothing may move."""
    begin_step(s.setup, s.costs, s.inputs, s.ahead)
    observe_routing(s)
    s.ahead.max_background = s.ahead.moves = s.ahead.moves_cost_ns = 0
    if s.setup.fixed_cache or not (s.setup.promote or s.setup.lookahead):
        return -1
    price_link(s.setup, s.costs, s.decision, s.ahead)
    lanes, estimated = s.decision.lanes, s.decision.assigned[3, 3]
    s.ahead.link_free_ns = lanes[LINK_FREE] + s.decision.num_transfers * s.costs.transfer_ns
    starts = s.ahead.starts
    for d in range(len(starts)):  # if layers take as long as they did so far
        starts[d] = estimated + s.learned.gap_ns + d * (s.learned.gap_ns + s.learned.layer_ns)
    s.ahead.max_background = fill_delays(s, starts[0])
    return int(s.ahead.max_background)


@compiled
def price_link(setup: Setup, costs: Costs, decision: Decision, ahead: Ahead) -> None:
    """What would half a transfer's lateness of the link have cost this layer? A background
    transfer that is still under way when the next layer starts makes that layer's own transfers
    wait; layers differ in how much that hurts, so the price is averaged over them."""
    later = ahead.lanes
    later[:] = decision.lanes
    later[CPU_FREE] = later[LINK_FREE] = 0
    late = max(later[TRANSFER] // 2, 1)
    delay = delay_by_link(
        setup.expected_rule,
        decision.active,
        decision.table,
        costs.tables,
        later,
        late,
        ahead.scratch,
    )
    ahead.link_price_seen = min(ahead.link_price_seen + 1, _MEMORY)
    ahead.link_price += (delay * _UNIT // late - ahead.link_price) // ahead.link_price_seen


@compiled
def fill_delays(s: State, next_start: int) -> int:
    """What 0, 1, 2, ... moves are expected to cost this layer and the next; returns how many can
    start before the next one's experts do."""
    delays, free, transfer = s.ahead.delays, s.ahead.link_free_ns, s.costs.transfer_ns
    work = cpu_work(s.costs, s.decision)
    count = 0
    while count < MAX_PROPOSED and free + count * transfer < next_start:
        count += 1
        end = free + count * transfer
        longer = longer_beside(s.costs, s.decision, work, end)
        late = max(end - next_start - longer, 0)
        delays[count] = longer + s.ahead.link_price * late // _UNIT
        if s.costs.cpu_slowed_by:
            delays[count] += s.learned.moving_more_ns
    return count


@compiled
def finish(s: State) -> int:
    """Prefetches, then promotions, into `ahead.background`; returns how many moves."""
    found = 0
    if s.setup.lookahead and s.ahead.max_background > 0 and looks_ahead(s.forecasts, s.ahead):
        collect_forecasts(s)
        picked = propose(s.setup.prefetch_rule, s) if s.forecasts.count > 0 else 0
        found = admit_proposed(s, picked)
        s.ahead.prefetched += found
    return count_moves(s.costs, s.decision, s.ahead, promote(s, found))


@compiled
def looks_ahead(forecasts: Forecasts, ahead: Ahead) -> bool:
    """Forecasts that are there are used in a rest, too."""
    return bool(ahead.resting == 0 or forecasts.count > 0)


@compiled
def count_moves(costs: Costs, decision: Decision, ahead: Ahead, count: int) -> int:
    """Keeps how many moves there are and what they are expected to cost this layer, for learning
    from it; returns how many."""
    ahead.moves = count
    if count > 0:
        end = ahead.link_free_ns + count * costs.transfer_ns
        ahead.moves_cost_ns = longer_beside(costs, decision, cpu_work(costs, decision), end)
    return count


@compiled
def collect_forecasts(s: State) -> None:
    """The body's forecasts, or predictions where it has none; what they name may not go."""
    if not s.setup.oracle:
        if s.setup.predicts:
            if s.forecasts.count == 0:
                s.forecasts.count = predict(s.setup, s.inputs, s.forecasts, s.predictor)
            elif s.ahead.resting == 0:
                complete(s.setup, s.inputs, s.forecasts, s.predictor)
        cut_to_used(s.inputs, s.forecasts)
        expect(s.setup, s.inputs, s.forecasts, s.predictor, s.forecasts.count)
    shapes, ids = s.forecasts.shapes, s.forecasts.ids
    for d in range(s.forecasts.count):
        shielded = s.slots.shield[shapes[d, 0]]
        for i in range(shapes[d, 1] * shapes[d, 2]):
            if ids[d, i] >= 0:
                shielded[ids[d, i]] = 1


@compiled
def admit_proposed(s: State, picked: int) -> int:
    """Slots for the proposals, best first; what finds none is dropped. Returns how many moves."""
    picks, shapes, moves = s.ahead.picks, s.forecasts.shapes, s.ahead.background
    found = 0
    for i in range(min(picked, s.ahead.max_background)):
        layer, expert = shapes[picks[i, 0], 0], picks[i, 1]
        move = moves[found]
        found += admit(s.setup, s.inputs, s.slots, s.cache, layer, expert, np.inf, move)
    return found


@compiled
def look_ahead(s: State) -> int:
    """Both stages, with whatever forecasts the body has filled in; returns how many moves."""
    if begin(s) < 0:
        return 0
    return finish(s)


# Whether looking ahead pays. Compiled. It takes the thread that decides tens of microseconds a
# layer, and where layers take no longer the next one waits for it. So a step whose prefetches are
# worth less than that is followed by some that do not look ahead, twice as many after every such
# step. Promotions, and what is known of tokens that run again, take no forecasting and go on.
# Only where the costs are those of a machine that was measured with everything at once
# (costs.cpu_slowed_by).

LOOK_AHEAD_NS = 20_000  # that it costs a layer
MOST_STEPS = 7  # of rest


@compiled
def begin_step(setup: Setup, costs: Costs, inputs: Inputs, ahead: Ahead) -> None:
    """Decide at the first layer of a step whether this step looks ahead."""
    if inputs.layer != 0:
        return
    if costs.cpu_slowed_by == 0:  # of another schedule, maybe, than the last step had
        ahead.looked = ahead.prefetched = ahead.rest = ahead.resting = 0
        return
    if ahead.resting > 0:
        ahead.resting -= 1
    elif ahead.looked:
        saved = ahead.prefetched * costs.tables[1, 1]
        pays = saved >= setup.layers * LOOK_AHEAD_NS
        ahead.rest = 0 if pays else min(2 * ahead.rest + 1, MOST_STEPS)
        ahead.resting = ahead.rest
    ahead.looked = ahead.resting == 0
    ahead.prefetched = 0
