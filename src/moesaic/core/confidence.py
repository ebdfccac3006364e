"""How sure a model is of its next token: three numbers of its distribution over the vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNKNOWN = float("nan")


class Confidence(NamedTuple):
    """One entry per token, NaN where it is not known. Of the model's own distribution: before
    temperature and whatever else sampling does to it."""

    top: NDArray[np.float32]  # probability of the likeliest token
    margin: NDArray[np.float32]  # by how much it is likelier than the second
    entropy: NDArray[np.float32]  # of the distribution, in nats

    @staticmethod
    def unknown(tokens: int) -> Confidence:
        return Confidence(*np.full((3, tokens), UNKNOWN, dtype=np.float32))

    def rows(self, which: slice | NDArray[np.int64] | NDArray[np.bool_] | list[int]) -> Confidence:
        return Confidence(self.top[which], self.margin[which], self.entropy[which])
