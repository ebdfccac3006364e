"""Whether looking ahead pays. Compiled, over the buffer.

It takes the thread that decides tens of microseconds a layer, and where layers take no longer the
next one waits for it. So a step whose prefetches are worth less than that is followed by some that
do not look ahead, twice as many after every such step. Promotions, and what is known of tokens that
run again, take no forecasting and go on. Only where the costs are those of a machine that was
measured with everything at once (CPU_SLOWED_BY)."""

from __future__ import annotations

from moesaic.policies.brain import fields as at
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

LOOK_AHEAD_NS = 20_000  # that it costs a layer
MOST_STEPS = 7  # of rest


@compiled
def begin_step(s: Ints) -> None:
    """At the first layer of a step: does this one look ahead?"""
    if s[at.LAYER] != 0:
        return
    if s[at.CPU_SLOWED_BY] == 0:  # of another schedule, maybe, than the last step had
        s[at.LOOKED] = s[at.PREFETCHED] = s[at.REST] = s[at.RESTING] = 0
        return
    if s[at.RESTING] > 0:
        s[at.RESTING] -= 1
    elif s[at.LOOKED]:
        saved = s[at.PREFETCHED] * at.ints(s, at.COSTS)[s[at.COST_TOKENS] + 1]
        pays = saved >= s[at.LAYERS] * LOOK_AHEAD_NS
        s[at.REST] = 0 if pays else min(2 * s[at.REST] + 1, MOST_STEPS)
        s[at.RESTING] = s[at.REST]
    s[at.LOOKED] = s[at.RESTING] == 0
    s[at.PREFETCHED] = 0
