"""What the routers of one layer said about every expert, added up over the tokens of a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints


@compiled
def add_scores(
    ranked: Ints, scores: NDArray[np.float64], ranks: int, total: NDArray[np.float64]
) -> None:
    """Add the first `ranks` scores of every token to `total[expert]`."""
    for token in range(ranked.shape[0]):
        for rank in range(min(ranks, ranked.shape[1])):
            expert = ranked[token, rank]
            if expert >= 0:
                total[expert] += scores[token, rank]
