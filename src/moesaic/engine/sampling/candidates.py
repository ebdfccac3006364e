"""Which tokens a row may draw and how likely each is: temperature, top-k, top-p, min-p.

The order is that of stock transformers, and so is what each filter keeps: all tokens tied with
the k-th for top-k, always the likeliest for top-p. Weights are probabilities but for a factor: a
row's likeliest token weighs 1. Filtered tokens stand in the order of their scores, equals in that
of their ids, so that a number leads to the same token wherever it is drawn.

Filters keep only the likeliest tokens, so only tokens above a lower bound are looked at
(`score_bounds.py`). Rows are computed one by one: a row's arithmetic is the same to the bit
whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.score_bounds import above_min_p, among_best

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
    if params.top_k:
        return _kept(row, best, params, among_best(row, params.top_k))
    if params.min_p > 0.0:
        return _kept(row, best, params, above_min_p(float(best), params.min_p, params.temperature))
    width = USUAL_WINDOW
    while True:
        ids, weights = _kept(row, best, params, among_best(row, width))
        # Where the last one is still kept there may be more.
        if len(ids) == len(row) or not weights[-1]:
            return ids, weights
        width *= WIDER


def _kept(
    row: torch.Tensor, best: torch.Tensor, params: SamplingParams, bound: float
) -> tuple[torch.Tensor, torch.Tensor]:
    # numpy's takes some 70 us for a vocabulary of 150 000, torch's 500.
    found = torch.from_numpy(np.flatnonzero(row.numpy() >= np.float32(bound)))
    scores, order = row[found].sort(descending=True, stable=True)
    weights = _weights(scores, best, params)
    if params.top_k:
        weights *= scores >= scores[min(params.top_k, len(scores)) - 1]
    reached = weights.cumsum(-1, dtype=torch.float64)
    keep = weights >= params.min_p
    if params.top_p < 1.0:
        mass = reached[-1] if params.top_k else _mass(row, best, params)
        likely = reached - weights < params.top_p * mass
        likely[0] = True
        keep &= likely
    return found[order], weights * keep


def _mass(row: torch.Tensor, best: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Of all tokens together."""
    return _weights(row, best, params).sum(-1, dtype=torch.float64)


def _weights(scores: torch.Tensor, best: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    return (scores - best).div_(max(params.temperature, MIN_TEMPERATURE)).exp_()
