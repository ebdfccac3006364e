"""Minus Recent Score (HybriMoE equation 3): S = alpha * TopP(s) + (1 - alpha) * S.

Only the p best scores of a token count, p = 2K unless set: below that, the paper finds no
difference in reuse. A step with several tokens contributes its mean score. Where a trace knows
only the chosen experts, p is cut to what it knows."""

from __future__ import annotations

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.cache.base import Cache
from moesaic.policies.cache.scores import TINY, add_scores
from moesaic.policies.compiled import compiled
from moesaic.policies.records import Floats
from moesaic.policies.timelines import Ints

DEFAULT_ALPHA = 0.1  # the paper leaves the averaging coefficient open; see docs/hybrimoe.md
ALPHA, TOP_P = 0, 1  # in `numbers`


@compiled
def observe_mrs(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    row = values[layer]
    alpha, top_p, tokens = numbers[ALPHA], int(numbers[TOP_P]), ranked.shape[0]
    for expert in range(len(row)):
        left = row[expert] * (1.0 - alpha)
        row[expert] = left if abs(left) > TINY else 0.0
    if tokens == 1:  # scores are single precision, and so is their share of one token
        for rank in range(min(top_p, ranked.shape[1])):
            if ranked[0, rank] >= 0:
                share = np.float32(alpha) * np.float32(scores[0, rank])
                row[ranked[0, rank]] += np.float64(share)
        return
    total = np.zeros(len(row))
    add_scores(ranked, scores, top_p, total)
    for expert in range(len(row)):
        row[expert] += (alpha / tokens) * total[expert]


class Mrs(Cache):
    rule = staticmethod(observe_mrs)

    def __init__(
        self,
        layers: int,
        experts: int,
        top_k: int,
        alpha: float = DEFAULT_ALPHA,
        top_p: int | None = None,
    ) -> None:
        super().__init__(layers, experts, top_k)
        if not 0.0 < alpha <= 1.0:
            raise ImpossibleSetting(f"mrs alpha is {alpha}; it must lie above 0 and at most at 1")
        self.alpha = alpha
        self.top_p = min(2 * top_k if top_p is None else top_p, experts)
        self.numbers[ALPHA], self.numbers[TOP_P] = alpha, self.top_p
