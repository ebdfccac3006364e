"""A layer's pairs of a token and a rank, grouped by expert on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED


class Pairs:
    """The pairs of routing [tokens, top_k]. A pair is `token * top_k + rank`; those of an expert
    ascend, and unused ones have no expert."""

    def __init__(self, experts: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        self.tokens, self.top_k = experts.shape
        self.weights = np.ascontiguousarray(weights, dtype=np.float32)
        flat = experts.ravel()
        self.order = np.argsort(flat.astype(np.int16), kind="stable")  # 16 bits: by radix
        counts = np.bincount(flat - UNUSED)  # [0]: unused, then by expert
        self._ends: list[int] = np.cumsum(counts).tolist()

    def span(self, expert: int) -> slice:
        """The range of the expert's pairs in `order`."""
        if expert - UNUSED >= len(self._ends):
            return slice(0, 0)
        return slice(self._ends[expert - UNUSED - 1], self._ends[expert - UNUSED])

    def of(self, expert: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.order[self.span(expert)]
        return found

    def load(self, expert: int) -> int:
        span = self.span(expert)
        return int(span.stop - span.start)
