"""The experts predicted for the next layer that are not there yet, likeliest first."""

from __future__ import annotations

import numpy as np

from moesaic.core.routing import ExpertId
from moesaic.policies.prefetch.base import Outlook, Prefetch


class NextLayer(Prefetch):
    lookahead = 1

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        if not outlook.forecasts:
            return []
        nearest = outlook.forecasts[0]
        experts = outlook.resident.shape[1]
        weight = np.bincount(
            nearest.ranked.ravel(), weights=nearest.scores.ravel(), minlength=experts
        )
        coming = {e.expert for e in outlook.coming if e.layer == nearest.layer}
        order = np.argsort(-weight, kind="stable")
        return [
            ExpertId(nearest.layer, int(e))
            for e in order[: np.count_nonzero(weight)]
            if not outlook.resident[nearest.layer, e] and int(e) not in coming
        ]
