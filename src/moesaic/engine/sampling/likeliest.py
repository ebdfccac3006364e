"""Which tokens have the highest scores, without sorting a vocabulary.

Scores are looked at in groups, of which the highest stands for all: a look at every score once, and
then only at the groups that have a score above the bound. Groups are columns of a table, whose
highest scores numpy finds with whole vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIZE = 64  # scores of a group

Scores = NDArray[np.float32]
Ids = NDArray[np.int64]


def best_tokens(scores: Scores, count: int) -> Ids:
    """The ids of the best `count` tokens and of all that are tied with them, and maybe of some
    more that come next; in ascending order."""
    if count >= len(scores):
        return np.arange(len(scores))
    tops = _groups(scores).max(0)
    # At least `count` scores reach the bound: so none of the best is below it.
    bound = _nth(tops if len(tops) >= 2 * count else scores, count)
    return _reaching(scores, bound, tops)


def tokens_from(scores: Scores, bound: float) -> Ids:
    """The ids of all tokens whose score is the bound or above it, in ascending order."""
    return _reaching(scores, np.float32(bound), _groups(scores).max(0))


def _groups(scores: Scores) -> Scores:
    """Those that are full; what is left over is looked at by itself."""
    width = len(scores) // _SIZE
    return scores[: _SIZE * width].reshape(_SIZE, width)


def _nth(scores: Scores, count: int) -> np.float32:
    at = len(scores) - count
    highest: np.float32 = np.partition(scores, at)[at]
    return highest


def _reaching(scores: Scores, bound: Any, tops: Scores) -> Ids:
    groups = np.flatnonzero(tops >= bound)
    if 4 * len(groups) > len(tops):
        return np.flatnonzero(scores >= bound)
    row, column = np.nonzero(_groups(scores)[:, groups] >= bound)
    rest = _SIZE * len(tops)
    left_over = np.flatnonzero(scores[rest:] >= bound) + rest
    return np.concatenate((row * len(tops) + groups[column], left_over))
