"""Thresholds to be compared: how many experts the little model has, from which confidence on its
token stands, and what the big model takes over where it does not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.policies.gate import BIG_LITTLE, FULL
from moesaic.policies.gate.measures import measured
from moesaic.policies.gate.reuse import ROUTE_AGAIN

TOP_PROBABILITY = "top-probability"


class Rule(NamedTuple):
    """`big-little` with these parameters. Gamma 0 is the little model, whatever the rest; gamma 1
    is the full one, where routers choose again."""

    k: int
    gamma: float
    confidence: str = TOP_PROBABILITY
    reuse: str = ROUTE_AGAIN

    @property
    def full(self) -> bool:
        return self.gamma >= 1.0 and self.reuse == ROUTE_AGAIN

    @property
    def gate(self) -> str:
        """The gate as an option."""
        if self.full:
            return FULL
        if not self.gamma:
            return f"little:k={self.k}"
        words = f"{BIG_LITTLE}:gamma={self.gamma:g},k={self.k}"
        if self.confidence != TOP_PROBABILITY:
            words += f",confidence={self.confidence}"
        return words if self.reuse == ROUTE_AGAIN else f"{words},reuse={self.reuse}"

    def stands(self, confidence: Confidence) -> NDArray[np.bool_]:
        """Which rows stand, as the gate judges."""
        if not self.gamma:
            return np.ones(len(confidence.top), dtype=np.bool_)
        return measured(self.confidence, confidence) > self.gamma


def full_rule(top_k: int) -> Rule:
    return Rule(top_k, 1.0)
