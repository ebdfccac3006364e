"""Thresholds to be compared: how many experts the little model has, and from which confidence on
its token stands."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.policies.gate import BIG_LITTLE, FULL
from moesaic.policies.gate.measures import measured

TOP_PROBABILITY = "top-probability"


class Rule(NamedTuple):
    """`big-little` with these parameters. Gamma 1 is the full model, gamma 0 the little one,
    whatever the rest."""

    k: int
    gamma: float
    confidence: str = TOP_PROBABILITY

    @property
    def full(self) -> bool:
        return self.gamma >= 1.0

    @property
    def gate(self) -> str:
        """As an option."""
        if self.full:
            return FULL
        if not self.gamma:
            return f"little:k={self.k}"
        words = f"{BIG_LITTLE}:gamma={self.gamma:g},k={self.k}"
        usual = self.confidence == TOP_PROBABILITY
        return words if usual else f"{words},confidence={self.confidence}"

    def stands(self, confidence: Confidence) -> NDArray[np.bool_]:
        """As the gate judges."""
        if not self.gamma:
            return np.ones(len(confidence.top), dtype=np.bool_)
        return measured(self.confidence, confidence) > self.gamma


def full_rule(top_k: int) -> Rule:
    return Rule(top_k, 1.0)
