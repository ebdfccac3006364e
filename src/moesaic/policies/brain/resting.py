"""Whether looking ahead pays. Compiled.

It takes the thread that decides tens of microseconds a layer, and where layers take no longer the
next one waits for it. So a step whose prefetches are worth less than that is followed by some that
do not look ahead, twice as many after every such step. Promotions, and what is known of tokens that
run again, take no forecasting and go on. Only where the costs are those of a machine that was
measured with everything at once (costs.cpu_slowed_by)."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.records import Ahead, Costs, Inputs, Setup

LOOK_AHEAD_NS = 20_000  # that it costs a layer
MOST_STEPS = 7  # of rest


@compiled
def begin_step(setup: Setup, costs: Costs, inputs: Inputs, ahead: Ahead) -> None:
    """At the first layer of a step: does this one look ahead?"""
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
