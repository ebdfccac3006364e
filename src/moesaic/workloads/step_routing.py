"""The routing of one step, laid out so that a layer of it costs next to nothing to hand over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.core.routing import Forecast, LayerRouting, cut_columns
from moesaic.core.step import Step
from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.header import TraceHeader


@dataclass(frozen=True, slots=True)
class StepRouting:
    """One forward pass: what it is (`step`), and where its tokens go in every layer.

    All arrays are layer-major and contiguous, so `layer(l)` only takes views."""

    step: Step
    documents: int  # from how many documents of the trace the tokens come
    experts: NDArray[np.int64]  # [L, N, k]
    weights: NDArray[np.float32]  # [L, N, k]
    ranked: NDArray[np.int64]  # [L, N, R]
    scores: NDArray[np.float32]  # [L, N, R]
    forecast_ranked: NDArray[np.int64] | None = None  # [L, D, N, P]
    forecast_scores: NDArray[np.float32] | None = None  # [L, D, N, P]
    counts: NDArray[np.int64] | None = None  # [N] experts used; None: every token uses all k
    confidence: Confidence | None = None  # of every token's next one, where the trace knows it

    @property
    def phase(self) -> str:
        return self.step.phase

    @property
    def tokens(self) -> int:
        return self.step.tokens

    @property
    def uses(self) -> int:
        """Experts used in a layer by all tokens together."""
        if self.counts is None:
            return self.tokens * int(self.experts.shape[2])
        return int(self.counts.sum())

    def layer(self, layer: int) -> LayerRouting:
        return LayerRouting(
            layer,
            self.experts[layer],
            self.weights[layer],
            self.ranked[layer],
            self.scores[layer],
            () if self.forecast_ranked is None else self._forecasts(layer),
            self.counts,
        )

    def cut(self, counts: NDArray[np.int64]) -> StepRouting:
        """The step if token t used its `counts[t]` best experts only, or as many as the trace has
        of it. Weights are not renormalised."""
        fewer = counts if self.counts is None else np.minimum(counts, self.counts)
        experts, weights = cut_columns(self.experts, self.weights, fewer)
        return replace(self, experts=experts, weights=weights, counts=fewer)

    def whole(self) -> StepRouting:
        """The step if every token used all of top-k, as its router ranked them."""
        if self.counts is None:
            return self
        k = self.experts.shape[2]
        unused = np.arange(k) >= self.counts[:, None]
        weights = np.where(unused, self.scores[..., :k], self.weights)
        experts = np.ascontiguousarray(self.ranked[..., :k])
        return replace(self, experts=experts, weights=weights, counts=None)

    def _forecasts(self, layer: int) -> tuple[Forecast, ...]:
        ranked, scores = self.forecast_ranked, self.forecast_scores
        assert ranked is not None
        assert scores is not None
        depth = min(ranked.shape[1], len(ranked) - layer - 1)
        return tuple(
            Forecast(layer + 1 + d, ranked[layer, d], scores[layer, d]) for d in range(depth)
        )

    @staticmethod
    def of(block: RoutingBlock, header: TraceHeader, step: Step, documents: int) -> StepRouting:
        """The block's tokens as one step."""
        k = header.top_k
        ranked = _layer_major(block.experts, np.int64)
        experts = ranked if header.ranks == k else np.ascontiguousarray(ranked[..., :k])
        weights, scores = _gate_values(block, experts)
        forecasts = _forecast_major(block.forecast_experts, np.int64)
        forecast_scores = _forecast_major(block.forecast_scores, np.float32)
        whole = StepRouting(
            step,
            documents,
            experts,
            weights,
            ranked,
            scores,
            forecasts,
            forecast_scores,
            confidence=_confidence(block),
        )
        if block.counts is None or (block.counts == k).all():
            return whole
        return whole.cut(block.counts.astype(np.int64))


def join_rows(rows: Sequence[tuple[StepRouting, int]]) -> StepRouting:
    """One step of tokens that come from several decode steps; each is a sequence of its own, and
    uses all of top-k."""
    first = rows[0][0]
    if len(rows) == first.tokens and all(
        step is first and row == number for number, (step, row) in enumerate(rows)
    ):
        return first

    def joined(name: str, axis: int) -> Any:
        parts = [getattr(step, name) for step, _ in rows]
        if any(part is None for part in parts):
            return None
        return np.stack(
            [part.take(row, axis) for part, (_, row) in zip(parts, rows, strict=True)], axis
        )

    confidences = [step.confidence for step, _ in rows]
    known = [c.rows([row]) for c, (_, row) in zip(confidences, rows, strict=True) if c is not None]
    confidence = None
    if len(known) == len(rows):
        confidence = Confidence(*(np.concatenate(column) for column in zip(*known, strict=True)))
    return StepRouting(
        Step(tuple(step.step.sequences[row] for step, row in rows)),
        len(rows),
        joined("experts", 1),
        joined("weights", 1),
        joined("ranked", 1),
        joined("scores", 1),
        joined("forecast_ranked", 2),
        joined("forecast_scores", 2),
        confidence=confidence,
    )


def _confidence(block: RoutingBlock) -> Confidence | None:
    if block.top is None or block.margin is None or block.entropy is None:
        return None
    return Confidence(block.top, block.margin, block.entropy)


def _gate_values(
    block: RoutingBlock, experts: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights and scores, each standing in for the other where the trace lacks it."""
    k = experts.shape[-1]
    weights = None if block.weights is None else _layer_major(block.weights, np.float32)
    scores = None if block.scores is None else _layer_major(block.scores, np.float32)
    if weights is None:
        if scores is None:
            weights = np.full(experts.shape, 1.0 / k, dtype=np.float32)
        else:
            weights = np.ascontiguousarray(scores[..., :k])
    return weights, weights if scores is None else scores


def _layer_major(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(array.swapaxes(0, 1), dtype=dtype)


def _forecast_major(array: NDArray[Any] | None, dtype: Any) -> NDArray[Any] | None:
    """[N, L, D, P] -> [L, D, N, P]"""
    return None if array is None else np.ascontiguousarray(np.moveaxis(array, 0, 2), dtype=dtype)
