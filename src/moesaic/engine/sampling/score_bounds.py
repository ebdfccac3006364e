"""Scores that no token is below that a filter keeps: cheap to find, and close enough that few
others are above them."""

from __future__ import annotations

import math

import numpy as np
import torch

_BLOCK = 64  # scores, of which the highest stands for all


def among_best(row: torch.Tensor, count: int) -> float:
    """A score that at least `count` tokens reach, if there are so many: so no token of the best
    `count`, nor any tied with them, is below it. The `count`-th of the highest scores of blocks is
    one, or the exact one where there are too few blocks."""
    blocks = len(row) // _BLOCK
    if count > len(row):
        return -math.inf
    scores = row
    if blocks >= 2 * count:
        scores = row[: blocks * _BLOCK].view(blocks, _BLOCK).amax(-1)
    values = scores.numpy()
    return float(np.partition(values, len(values) - count)[len(values) - count])


def above_min_p(best: float, min_p: float, temperature: float) -> float:
    """A little below what is `min_p` times as likely as the best: weights are compared later."""
    exact = best + temperature * math.log(min_p)
    return exact - 1e-3 * temperature - 1e-5 * abs(exact)
