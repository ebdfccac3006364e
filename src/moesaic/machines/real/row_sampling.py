"""How a machine may sample the next token of a row itself."""

from __future__ import annotations

import math
from typing import NamedTuple


class RowSampling(NamedTuple):
    """Temperature, then the filters in this order, then a draw with a number in [0, 1), which comes
    from the request's own generator: so a seed leads to the same tokens on every device. What else
    changes logits, or reads them, is not for machines. The defaults are the greedy choice."""

    number: float = 0.0
    temperature: float = 1.0  # above 0
    top_k: int = 1  # 0: all tokens
    top_p: float = 1.0  # 1: all tokens
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.top_k == 1

    def words(self, vocabulary: int) -> tuple[float, ...]:
        """As the GPU's kernel reads them (`kernels/gpu/sampling.py`)."""
        filters = self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
        most = min(self.top_k or vocabulary, vocabulary)
        share = self.top_p if self.top_p < 1.0 else math.inf
        return self.number, self.temperature, most, share, self.min_p, filters


GREEDY = RowSampling()
