"""Least recently used: an expert is worth the moment of its last use.

Where a gate lets tokens use fewer experts than top-k, the router has still ranked them all. Those
that were left out are what the token needs if it runs again, and close to what the next one uses:
with `counts=ranked` they count as used just before those that were."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache import RANKED, USED
from moesaic.policies.cache.base import Cache
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

# In `numbers`. The clock starts at 1: 0 is the value of what was never used.
CLOCK, COUNTS_RANKED = 0, 1


@compiled
def observe_lru(
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float64],
    values: NDArray[np.float64],
    memory: NDArray[np.float64],
    numbers: NDArray[np.float64],
) -> None:
    """Later tokens are more recent; within a token, better ranks are."""
    row, left_out = values[layer], numbers[COUNTS_RANKED] > 0.0
    for token in range(experts.shape[0]):
        if left_out:
            for rank in range(min(experts.shape[1], ranked.shape[1]) - 1, -1, -1):
                expert = ranked[token, rank]
                if expert >= 0:
                    row[expert] = numbers[CLOCK]
                    numbers[CLOCK] += 1.0
        for rank in range(experts.shape[1] - 1, -1, -1):
            expert = experts[token, rank]
            if expert >= 0:
                row[expert] = numbers[CLOCK]
                numbers[CLOCK] += 1.0


class Lru(Cache):
    rule = staticmethod(observe_lru)

    def __init__(self, layers: int, experts: int, top_k: int, counts: str = USED) -> None:
        super().__init__(layers, experts, top_k)
        self.numbers[CLOCK] = 1.0
        self.numbers[COUNTS_RANKED] = float(counts == RANKED)
