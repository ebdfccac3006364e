"""Which experts the CPU may be given in the next layer, for workers that read them into their
caches while the GPU attends. Compiled, over the buffer."""

from __future__ import annotations

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.forecasts import likelihoods
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import MOST_READ_AHEAD
from moesaic.policies.timelines import Ints


@compiled
def foresee(s: Ints) -> int:
    """After a layer of one token: experts of the next one that are not on the GPU, likeliest first,
    into AHEAD_IDS; returns how many: more than READ_AHEAD where there are, since some may be under
    way. As predicted: a body with forecasts has no need to ask."""
    later, experts, most = s[at.LAYER] + 1, s[at.EXPERTS], MOST_READ_AHEAD
    if s[at.READ_AHEAD] == 0 or s[at.TOKENS] != 1 or later == s[at.LAYERS]:
        return 0
    likely = likelihoods(s)
    resident = at.octets(s, at.RESIDENT)[later * experts : (later + 1) * experts]
    ids = at.ints(s, at.AHEAD_IDS)
    held = 0
    for expert in range(experts):
        if resident[expert] or (held == most and likely[expert] <= likely[ids[held - 1]]):
            continue
        place = held if held < most else held - 1
        while place > 0 and likely[ids[place - 1]] < likely[expert]:
            ids[place] = ids[place - 1]
            place -= 1
        ids[place] = expert
        held = min(held + 1, most)
    return int(held)
