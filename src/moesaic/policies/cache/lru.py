"""Least recently used: an expert is worth the moment of its last use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.base import LRU, Cache
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

CLOCK = 0  # in `numbers`; 0 is the value of what was never used


@compiled
def observe_lru(experts: Ints, row: NDArray[np.float64], numbers: NDArray[np.float64]) -> None:
    """Later tokens are more recent; within a token, better ranks are."""
    for token in range(experts.shape[0]):
        for rank in range(experts.shape[1] - 1, -1, -1):
            expert = experts[token, rank]
            if expert >= 0:
                row[expert] = numbers[CLOCK]
                numbers[CLOCK] += 1.0


class Lru(Cache):
    rule = LRU

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        super().__init__(layers, experts, top_k)
        self.numbers[CLOCK] = 1.0
