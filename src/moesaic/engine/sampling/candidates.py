"""Which tokens a row may draw and how likely each is: temperature, top-k, top-p, min-p.

The order is that of stock transformers, and so is what each filter keeps: all tokens tied with
the k-th for top-k, always the likeliest for top-p. Weights are probabilities but for a factor: a
row's likeliest token weighs 1.

Filters keep only the likeliest tokens, so only a window of a row's best ones is sorted. Where the
last token of the window is still kept there may be more, and the row is filtered again with a wider
window; otherwise nothing beyond it could have been kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from moesaic.engine.sampling.sampling_params import SamplingParams

SMALLEST_WINDOW = 64
# Without top-k the number kept is unknown: a first guess, widened if it was too small.
USUAL_WINDOW = 1024
WIDER = 8  # times, at the next look; still far cheaper than sorting the vocabulary
# The smallest divisor of fp32: below it a temperature would count as 0, and 0 / 0 is nothing.
_MIN_TEMPERATURE = torch.finfo(torch.float32).tiny


class Candidates(NamedTuple):
    """What some rows of a batch may draw from."""

    rows: list[int]  # which rows of the batch
    ids: torch.Tensor | None  # [these rows, width]; None: all tokens, in the order of their ids
    weights: torch.Tensor  # [these rows, width], 0 for a token that may not be drawn

    def draw(self, uniform: Sequence[float]) -> list[int]:
        """One token per row, from one number in [0, 1) per row."""
        # fp64, so that also the unlikely tokens of a large vocabulary keep their share.
        reached = self.weights.cumsum(-1, dtype=torch.float64)
        aim = reached[:, -1:] * _column(uniform, reached)
        # To the right of equals: a token without weight does not move on, so nothing ends at it.
        index = torch.searchsorted(reached, aim, right=True)
        tokens = index if self.ids is None else self.ids.gather(1, index)
        drawn: list[int] = tokens[:, 0].tolist()
        return drawn


class _Kind(NamedTuple):
    """Rows that can be computed together. Depends on a row's own parameters only, so that its
    arithmetic is the same to the bit whatever else is in the batch."""

    filtered: bool
    top_k: bool
    width: int  # of the window


def candidates(scores: torch.Tensor, params: Sequence[SamplingParams]) -> Iterator[Candidates]:
    """Every row once, in groups. Scores are fp32, [rows, vocabulary], and finite at the best."""
    groups: dict[_Kind, list[int]] = defaultdict(list)
    for row, each in enumerate(params):
        groups[_kind(each, scores.shape[1])].append(row)
    for kind, rows in groups.items():
        mine = scores if len(rows) == len(scores) else scores[rows]
        row_params = [params[row] for row in rows]
        if kind.filtered:
            yield from _filtered(mine, row_params, rows, kind)
        else:
            yield Candidates(rows, None, _weights(mine, mine.amax(-1, keepdim=True), row_params))


def _kind(params: SamplingParams, vocabulary: int) -> _Kind:
    if params.top_k:
        beyond_k = 1 << params.top_k.bit_length()  # wide enough to see whether more are tied
        return _Kind(True, True, min(vocabulary, max(SMALLEST_WINDOW, beyond_k)))
    filtered = params.top_p < 1.0 or params.min_p > 0.0
    return _Kind(filtered, False, min(vocabulary, USUAL_WINDOW) if filtered else vocabulary)


def _filtered(
    scores: torch.Tensor, params: list[SamplingParams], rows: list[int], kind: _Kind
) -> Iterator[Candidates]:
    best, ids = scores.topk(kind.width)
    weights = _weights(best, best[:, :1], params)
    if kind.top_k:
        last = _column([min(p.top_k, kind.width) - 1 for p in params], scores, torch.int64)
        weights *= best >= best.gather(1, last)
        mass = weights.sum(-1, keepdim=True, dtype=torch.float64)
    else:
        mass = _weights(scores, best[:, :1], params).sum(-1, keepdim=True, dtype=torch.float64)
    likelier = weights.cumsum(-1, dtype=torch.float64) - weights
    share = _column([p.top_p if p.top_p < 1.0 else float("inf") for p in params], scores)
    keep = likelier < share * mass
    keep[:, 0] = True
    keep &= weights >= _column([p.min_p for p in params], scores)
    weights *= keep

    whole = kind.width == scores.shape[1]
    unsure = [] if whole else (weights[:, -1] > 0).nonzero()[:, 0].tolist()
    if not unsure:
        yield Candidates(rows, ids, weights)
        return
    sure = sorted(set(range(len(rows))) - set(unsure))
    if sure:
        yield Candidates([rows[i] for i in sure], ids[sure], weights[sure])
    yield from _filtered(
        scores[unsure],
        [params[i] for i in unsure],
        [rows[i] for i in unsure],
        kind._replace(width=min(scores.shape[1], kind.width * WIDER)),
    )


def _weights(
    scores: torch.Tensor, best: torch.Tensor, params: Sequence[SamplingParams]
) -> torch.Tensor:
    temperature = [max(p.temperature, _MIN_TEMPERATURE) for p in params]
    return (scores - best).div_(_column(temperature, scores, scores.dtype)).exp_()


def _column(
    values: Sequence[float], like: torch.Tensor, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]
