"""Which tokens a row may draw and how likely each is: temperature, top-k, top-p, min-p.

The order is that of stock transformers, and so is what each filter keeps: all tokens tied with
the k-th for top-k, always the likeliest for top-p. Weights are probabilities but for a factor: a
row's likeliest token weighs 1. Filtered tokens stand in the order of their scores, equals in that
of their ids, so that a number leads to the same token wherever it is drawn.

Filters keep only the likeliest tokens, so only those are sorted. Rows are computed
one by one: a row's arithmetic is the same to the bit whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.engine.sampling.sampling_params import SamplingParams

# With top-p alone the number kept is unknown: a first guess, widened if it was too small.
USUAL_WINDOW = 512
WIDER = 8  # times, at the next look; still far cheaper than sorting the vocabulary
# The smallest divisor of fp32: below it a temperature would count as 0, and 0 / 0 is nothing.
MIN_TEMPERATURE = torch.finfo(torch.float32).tiny


class Candidates(NamedTuple):
    """What some rows of a batch may draw from."""

    rows: list[int]  # which rows of the batch
    ids: torch.Tensor | None  # [these rows, width]; None: all tokens, in the order of their ids
    weights: torch.Tensor  # [these rows, width], 0 for a token that may not be drawn

    def draw(self, uniform: Sequence[float]) -> list[int]:
        """One token per row, from one number in [0, 1) per row."""
        # fp64, so that also the unlikely tokens of a large vocabulary keep their share.
        reached = self.weights.cumsum(-1, dtype=torch.float64)
        aim = reached[:, -1:] * torch.tensor(uniform, dtype=torch.float64)[:, None]
        # To the right of equals: a token without weight does not move on, so nothing ends at it.
        index = torch.searchsorted(reached, aim, right=True)
        tokens = index if self.ids is None else self.ids.gather(1, index)
        drawn: list[int] = tokens[:, 0].tolist()
        return drawn


def candidates(scores: torch.Tensor, params: Sequence[SamplingParams]) -> Iterator[Candidates]:
    """Every row once. Scores are fp32, [rows, vocabulary], in host memory, and finite at the
    best."""
    for number, (row, each) in enumerate(zip(scores, params, strict=True)):
        best = row.amax()
        if each.filters:
            ids, weights = _filtered(row, best, each)
            yield Candidates([number], ids[None], weights[None])
        else:
            yield Candidates([number], None, _weights(row, best, each)[None])


def _filtered(
    row: torch.Tensor, best: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights of all tokens that are kept, and of some that are not, whose weight is 0."""
    scores = row.numpy()
    if params.top_k:
        return _kept(row, best, params, best_tokens(scores, params.top_k), None)
    mass = _mass(row, best, params) if params.top_p < 1.0 else None
    if params.min_p > 0.0:
        likely = tokens_from(scores, _least_score(float(best), params))
        return _kept(row, best, params, likely, mass)
    width = USUAL_WINDOW
    while True:
        ids, weights = _kept(row, best, params, best_tokens(scores, width), mass)
        # Where the last one is still kept there may be more.
        if len(ids) == len(row) or not weights[-1]:
            return ids, weights
        width *= WIDER


def _least_score(best: float, params: SamplingParams) -> float:
    """A little below the score of what is `min_p` times as likely as the best: weights are
    compared later."""
    exact = best + params.temperature * math.log(params.min_p)
    return exact - 1e-3 * params.temperature - 1e-5 * abs(exact)


def _kept(
    row: torch.Tensor, best: torch.Tensor, params: SamplingParams, ids: Ids, mass: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ids` in ascending order, so that equals stay in it; `mass`: of all that top-p chooses from,
    None: these. Few tokens: numpy's calls take a microsecond, torch's five."""
    found = row.numpy()[ids]
    order = np.argsort(-found, kind="stable")
    scores = found[order]
    weights = _weights(torch.from_numpy(scores), best, params).numpy()
    if params.top_k:
        weights *= scores >= scores[min(params.top_k, len(scores)) - 1]
    keep = weights >= params.min_p
    if params.top_p < 1.0:
        reached = weights.cumsum(dtype=np.float64)
        likely = reached - weights < params.top_p * (reached[-1] if mass is None else mass)
        likely[0] = True
        keep &= likely
    return torch.from_numpy(ids[order]), torch.from_numpy(weights * keep)


def _mass(row: torch.Tensor, best: torch.Tensor, params: SamplingParams) -> float:
    """The probability mass of all tokens together."""
    return float(_weights(row, best, params).sum(-1, dtype=torch.float64))


def _weights(scores: torch.Tensor, best: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    return (scores - best).div_(max(params.temperature, MIN_TEMPERATURE)).exp_()


# Which tokens have the highest scores, without sorting a vocabulary. Scores are looked at in
# groups, of which the highest stands for all: a look at every score once, and then only at the
# groups that have a score above the bound. Groups are columns of a table, whose highest scores
# numpy finds with whole vectors.

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
