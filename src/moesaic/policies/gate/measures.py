"""Confidence measures: one number per token in [0, 1], higher where the model is surer.

All three are 1 for a distribution with a single likely token, so one threshold means about the
same to each. Over n equally likely tokens `top-probability` and `entropy` are 1/n, `margin` is 0;
`entropy` never exceeds `top-probability`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.policies.gate import MEASURES

_VALUES: dict[str, Callable[[Confidence], NDArray[np.float32]]] = {
    "top-probability": lambda confidence: confidence.top,
    "margin": lambda confidence: confidence.margin,
    "entropy": lambda confidence: np.exp(-confidence.entropy),  # the inverse of the perplexity
}
assert tuple(_VALUES) == MEASURES


def measured(name: str, confidence: Confidence) -> NDArray[np.float32]:
    """Rounding of a softmax may exceed 1, which nothing may: a threshold of 1 keeps no token."""
    return np.minimum(_VALUES[name](confidence), np.float32(1.0))
