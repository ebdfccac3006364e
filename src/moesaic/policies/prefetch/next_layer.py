"""The experts predicted for the next layer that are not there yet, likeliest first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import ExpertId
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import NEXT_LAYER, Outlook, Prefetch
from moesaic.policies.timelines import Ints


@compiled
def propose_next_layer(
    ids: Ints,
    scores: NDArray[np.float64],
    absent: NDArray[np.uint8],
    picks: Ints,
) -> int:
    """Write the experts with the highest added-up scores among the absent ones into `picks`;
    returns how many."""
    weights = np.zeros(len(absent))
    for i in range(len(ids)):
        if ids[i] >= 0:
            weights[ids[i]] += scores[i]
    for picked in range(len(picks)):
        best = -1
        for expert in range(len(absent)):
            least = weights[best] if best >= 0 else 0.0
            if absent[expert] and weights[expert] > least:
                best = expert
        if best < 0:
            return picked
        picks[picked] = best
        weights[best] = 0.0
    return len(picks)


class NextLayer(Prefetch):
    rule = NEXT_LAYER
    lookahead = 1

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        if not outlook.forecasts:
            return []
        nearest = outlook.forecasts[0]
        absent = (outlook.resident[nearest.layer] == 0).astype(np.uint8)
        for layer, expert in outlook.coming:
            if layer == nearest.layer:
                absent[expert] = 0
        picks = np.zeros(len(absent), dtype=np.int64)
        ids = np.ascontiguousarray(nearest.ranked).ravel()
        scores = np.ascontiguousarray(nearest.scores, dtype=np.float64).ravel()
        picked = propose_next_layer(ids, scores, absent, picks)
        return [ExpertId(nearest.layer, int(e)) for e in picks[:picked]]
