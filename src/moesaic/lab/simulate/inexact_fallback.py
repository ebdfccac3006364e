"""Prefetching for tokens that run again where the rejected pass is only partly right.

A trace has one routing per token, so a simulated rejected pass would want exactly what the big one
uses. In truth fewer experts change the hidden states, and with them what later routers choose: a
stated share of the wants is replaced by experts that are not used. Where the gate binds the big
pass to what the rejected one chose (`reuse`), the trace's routing stands for that choice, and all
wants are right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.policies.brain import Brain
from moesaic.policies.fallback_prefetch import FallbackPrefetch, RankedExperts
from moesaic.policies.gate.base import Gate


class InexactFallback(FallbackPrefetch):
    def __init__(self, brain: Brain, gate: Gate, accuracy: float, seed: int) -> None:
        super().__init__(brain, gate)
        self._right_share, self._random = accuracy, np.random.default_rng(seed)
        self._experts = brain.cache.values.shape[1]

    def wanted(self, routing: LayerRouting) -> RankedExperts:
        ranked, scores = super().wanted(routing)
        if self._right_share == 1.0:
            return RankedExperts(ranked, scores)
        wrong = self._random.random(ranked.shape) >= self._right_share
        changed = ranked.copy()
        for token, rank in zip(*wrong.nonzero(), strict=True):
            changed[token, rank] = self._other(changed[token], ranked[token])
        return RankedExperts(changed, scores)

    def _other(self, *taken: NDArray[np.int64]) -> int:
        """An expert that is neither used nor wanted already."""
        is_free = np.ones(self._experts, dtype=np.bool_)
        for experts in taken:
            is_free[experts[experts != UNUSED]] = False
        free = is_free.nonzero()[0]
        return int(self._random.choice(free)) if len(free) else int(taken[0][0])
