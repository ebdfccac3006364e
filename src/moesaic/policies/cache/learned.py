"""What the caches share that learn which of several forecasts to follow: what a step says about the
experts of a layer, and which forecasts it judges."""

from __future__ import annotations

import numpy as np

from moesaic.policies.cache.scores import add_scores, add_uses
from moesaic.policies.compiled import compiled
from moesaic.policies.records import Floats
from moesaic.policies.timelines import Ints

UNSEEN = 0.05  # of probability, spread over all experts: nothing is impossible
JUDGES = 8  # tokens of a large step that forecasts are judged by


@compiled
def add_step(
    experts: Ints, ranked: Ints, scores: Floats, top_p: int, used: Floats, scored: Floats
) -> tuple[float, float]:
    """The step's uses of every expert and its scores, added to `used` and `scored`; without scores
    uses stand for them. Returns what either adds up to; 0.0 where there is nothing to learn."""
    uses = add_uses(experts, used)
    total = add_scores(ranked, scores, top_p, scored)
    if uses == 0.0 or not 0.0 <= total < np.inf:  # or a model that is broken: NaN would stay
        return 0.0, 0.0
    if total == 0.0:
        scored[:] = used
        return uses, uses
    return uses, total


@compiled
def judged_planes(memory: Floats, planes: int, layer: int, step: int, lag: int) -> int:
    """The first of so many planes of forecasts that this step judges. The first planes of `memory`
    are the newest ones; the next as many, with a `lag`, are those of up to so many steps ago."""
    if lag <= 1:
        return 0
    if (step + layer) % lag == 0 or step == 1:  # not all layers in one step
        memory[planes : 2 * planes, layer] = memory[:planes, layer]
    return planes
