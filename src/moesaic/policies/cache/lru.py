"""Least recently used: an expert is worth the moment of its last use."""

from __future__ import annotations

import numpy as np

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.policies.cache.base import Cache


class Lru(Cache):
    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        super().__init__(layers, experts, top_k)
        self._clock = 1  # 0 is the value of what was never used

    def observe(self, routing: LayerRouting) -> None:
        """Later tokens are more recent; within a token, better ranks are."""
        used = routing.experts[:, ::-1].ravel()
        if routing.counts is not None:
            used = used[used != UNUSED]
        self.values[routing.layer, used] = np.arange(self._clock, self._clock + len(used))
        self._clock += len(used)
