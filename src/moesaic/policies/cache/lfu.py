"""Least frequently used: an expert is worth the tokens it has served."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.base import Cache
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints


@compiled
def observe_lfu(
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float64],
    values: NDArray[np.float64],
    memory: NDArray[np.float64],
    numbers: NDArray[np.float64],
) -> None:
    for expert in experts.flat:
        if expert >= 0:
            values[layer, expert] += 1.0


class Lfu(Cache):
    rule = staticmethod(observe_lfu)
