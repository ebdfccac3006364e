"""What the routers of one layer said about every expert, added up over the tokens of a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

TINY = 1e-30  # an average below is 0: it would become a number that a CPU is slow with


@compiled
def add_scores(
    ranked: Ints, scores: NDArray[np.float64], ranks: int, total: NDArray[np.float64]
) -> float:
    """Add the first `ranks` scores of every token to `total[expert]`; returns what they add up
    to."""
    sum_of_all = 0.0
    for token in range(ranked.shape[0]):
        for rank in range(min(ranks, ranked.shape[1])):
            expert = ranked[token, rank]
            if expert >= 0:
                total[expert] += scores[token, rank]
                sum_of_all += scores[token, rank]
    return sum_of_all


@compiled
def add_uses(experts: Ints, total: NDArray[np.float64]) -> float:
    """Add 1 to `total[expert]` for every token that uses it; returns how many uses there are."""
    uses = 0.0
    for token in range(experts.shape[0]):
        for rank in range(experts.shape[1]):
            if experts[token, rank] >= 0:
                total[experts[token, rank]] += 1.0
                uses += 1.0
    return uses
