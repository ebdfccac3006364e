"""Big-little decoding (MoBiLE, Algorithm 1).

A token is first computed by the little model, with the k best of top-k experts. Where the
confidence in the next token is above gamma it stands; elsewhere the pass is evicted and the token
runs again with all experts, at the same position of the same KV cache. What the routers of the
evicted pass wanted is prefetched for the big one (policies/fallback_prefetch.py), which routes
again or, with `reuse`, is bound to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.policies.gate.base import MAX_DISTANCE, Gate, GateStep
from moesaic.policies.gate.little import little_k
from moesaic.policies.gate.measures import measured
from moesaic.policies.gate.reuse import ROUTE_AGAIN


class BigLittle(Gate):
    reruns = True

    def __init__(
        self,
        top_k: int,
        gamma: float = 0.7,
        k: int | None = None,
        confidence: str = "top-probability",
        distance: int | None = None,
        reuse: str = ROUTE_AGAIN,
    ) -> None:
        super().__init__(top_k)
        self.gamma, self.confidence, self.distance = gamma, confidence, distance
        self.k = little_k("big-little", top_k, k)
        # A margin may be 0 exactly; with gamma 0 everything stands all the same. With k of top-k
        # there is nothing to fall back on.
        self.reruns = gamma > 0 and self.k < top_k
        self.reuse = reuse if self.reruns else ROUTE_AGAIN

    def experts_per_token(self, step: GateStep) -> NDArray[np.int64] | None:
        big = np.array(step.prompt) | (np.array(step.attempts) > 0)
        if big.all():
            return None
        return np.repeat(np.where(big, self.top_k, self.k), step.tokens)

    def judge(self, step: GateStep, confidence: Confidence) -> NDArray[np.bool_]:
        return ~(measured(self.confidence, confidence) > self.gamma)

    def prefetch_distance(self, layer_ns: int, transfer_ns: int) -> int:
        """The number of layers that the experts which the little pass did not use take on the link,
        if none of them is resident."""
        if self.distance is not None:
            return self.distance
        missing_ns = (self.top_k - self.k) * transfer_ns
        return int(np.clip(-(-missing_ns // max(layer_ns, 1)), 1, MAX_DISTANCE))
