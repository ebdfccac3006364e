"""Running scores at two speeds: what is popular, and what is in fashion right now.

MRS must choose one averaging coefficient: a small one misses the topic of the moment, a large
one forgets which experts are popular throughout. Here the value is the mean of a fast and a slow
average of the same scores; the slow one starts as a plain mean, so it knows something from the
first token on."""

from __future__ import annotations

import numpy as np

from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.base import Cache

FAST = 0.2
SLOW = 0.01


class TwoSpeed(Cache):
    def __init__(
        self, layers: int, experts: int, top_k: int, fast: float = FAST, slow: float = SLOW
    ) -> None:
        super().__init__(layers, experts, top_k)
        self._fast_weight, self._slow_weight = fast, slow
        self._top_p = min(2 * top_k, experts)
        self._fast = np.zeros((layers, experts))
        self._slow = np.zeros((layers, experts))
        self._seen = np.zeros(layers)

    def observe(self, routing: LayerRouting) -> None:
        layer, experts = routing.layer, self.values.shape[1]
        ranked, scores = routing.ranked[:, : self._top_p], routing.scores[:, : self._top_p]
        total = np.bincount(ranked.ravel(), weights=scores.ravel(), minlength=experts)
        mean = total / len(ranked)
        self._seen[layer] += 1
        slow = max(self._slow_weight, 1.0 / self._seen[layer])
        self._fast[layer] += self._fast_weight * (mean - self._fast[layer])
        self._slow[layer] += slow * (mean - self._slow[layer])
        self.values[layer] = 0.5 * (self._fast[layer] + self._slow[layer])
