"""Minus Recent Score (HybriMoE equation 3): S = alpha * TopP(s) + (1 - alpha) * S.

Only the p best scores of a token count, p = 2K unless set: below that, the paper finds no
difference in reuse. A step with several tokens contributes its mean score. Where a trace knows
only the chosen experts, p is cut to what it knows."""

from __future__ import annotations

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.base import Cache

ALPHA = 0.1  # the paper leaves the averaging coefficient open; see docs/hybrimoe.md


class Mrs(Cache):
    def __init__(
        self, layers: int, experts: int, top_k: int, alpha: float = ALPHA, top_p: int | None = None
    ) -> None:
        super().__init__(layers, experts, top_k)
        if not 0.0 < alpha <= 1.0:
            raise ImpossibleSetting(f"mrs alpha is {alpha}; it must lie above 0 and at most at 1")
        self.alpha = alpha
        self.top_p = min(2 * top_k if top_p is None else top_p, experts)

    def observe(self, routing: LayerRouting) -> None:
        row = self.values[routing.layer]
        ranked, scores = routing.ranked[:, : self.top_p], routing.scores[:, : self.top_p]
        row *= 1.0 - self.alpha
        if len(ranked) == 1:
            row[ranked[0]] += self.alpha * scores[0]
        else:
            total = np.bincount(ranked.ravel(), weights=scores.ravel(), minlength=len(row))
            row += (self.alpha / len(ranked)) * total
