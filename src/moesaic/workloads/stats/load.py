"""How unevenly traffic falls on the experts of a layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED
from moesaic.workloads.stats.sample import Sample


def loads(sample: Sample) -> NDArray[np.int64]:
    """How often each expert was chosen, [L, E]."""
    layers, experts = sample.num_layers, sample.num_experts
    counts = np.bincount(used_numbers(sample.chosen, experts), minlength=layers * experts)
    return counts.reshape(layers, experts)


def used_numbers(chosen: NDArray[Any], experts: int) -> NDArray[np.int64]:
    """The used ones of chosen experts [tokens, L, k], in one list, counted through all layers:
    expert e of layer l is l * experts + e."""
    numbers: NDArray[np.int64] = chosen.astype(np.int64)
    flat = numbers + np.arange(chosen.shape[1])[:, None] * experts
    return np.asarray(flat[numbers != UNUSED])


def top_shares(counts: NDArray[np.int64], fractions: tuple[float, ...]) -> list[float]:
    """Share of the traffic that the most used fraction of each layer's experts takes, mean over
    layers (HybriMoE Fig. 3(a)); between two experts the curve is a straight line."""
    ordered = -np.sort(-counts, axis=1)
    curve = np.cumsum(ordered / ordered.sum(axis=1, keepdims=True), axis=1).mean(axis=0)
    experts = counts.shape[1]
    points = np.arange(experts + 1) / experts
    return [float(np.interp(f, points, np.concatenate([[0.0], curve]))) for f in fractions]


def max_over_mean(counts: NDArray[np.int64]) -> float:
    """The busiest expert's load over the mean load, mean over layers."""
    return float((counts.max(axis=1) / counts.mean(axis=1)).mean())


def min_over_mean(counts: NDArray[np.int64]) -> float:
    """The least used expert's load over the mean load, mean over layers."""
    return float((counts.min(axis=1) / counts.mean(axis=1)).mean())


def gini(counts: NDArray[np.int64]) -> float:
    """0: all experts alike; towards 1: few take everything. `counts` is [..., E], each row a layer
    with some traffic; mean over all rows."""
    experts = counts.shape[-1]
    ordered = np.sort(counts, axis=-1)
    ranks = 2 * np.arange(1, experts + 1) - experts - 1
    return float(((ordered * ranks).sum(axis=-1) / (experts * ordered.sum(axis=-1))).mean())


def entropy(counts: NDArray[np.int64]) -> float:
    """The entropy of the load, over that of equal loads: 1 where all experts are used alike; mean
    over layers."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    maximum = np.log(counts.shape[1])
    return float(-(shares * logs).sum(axis=1).mean() / maximum) if maximum else 1.0


def window_loads(sample: Sample, window: int) -> NDArray[np.int64]:
    """How often each expert was chosen in the first `window` tokens of every document that has as
    many, [documents, L, E]: documents of any length then compare."""
    return _loads_from(sample, sample.starts[:-1][sample.lengths >= window], window)


def later_window_loads(sample: Sample, window: int) -> NDArray[np.int64]:
    """The same of every further `window` tokens of a document, [windows, L, E]. Answers begin with
    words of their own (formulas, a restated question) and take a while to settle."""
    documents = zip(sample.starts[:-1].tolist(), sample.lengths.tolist(), strict=True)
    starts = [
        start + behind
        for start, length in documents
        for behind in range(window, length - window + 1, window)
    ]
    return _loads_from(sample, starts, window)


def _loads_from(sample: Sample, starts: Iterable[int], window: int) -> NDArray[np.int64]:
    found = [loads(sample.part(start, start + window)) for start in starts]
    return np.array(found, np.int64).reshape(-1, sample.num_layers, sample.num_experts)


# What a batch of unrelated tokens asks of a layer's experts.

DRAWS = 100  # batches drawn per size: the mean is then good to about 0.002

# Relative to the mean load of a batch, B * k / E tokens: a definition that means the same at
# every batch size. TriMoE's Figure 3 gives no thresholds; these put its "long tail" below half
# of the mean and its hot experts at twice the mean.
COLD_BELOW = 0.5
HOT_FROM = 2.0


class Temperature(NamedTuple):
    """One class of experts: its share of all experts and of all expert-tokens."""

    experts: float
    tokens: float


def batch_loads(sample: Sample, batch: int, seed: int = 0) -> NDArray[np.int64]:
    """Tokens per expert of random batches, [draws, L, E]; fewer tokens than `batch` in the whole
    sample: drawn with repetition."""
    rng = np.random.default_rng([seed, batch])
    tokens, layers, experts = len(sample.ranked), sample.num_layers, sample.num_experts
    chosen, draws = sample.chosen, []
    for _ in range(DRAWS):
        rows = rng.choice(tokens, batch, replace=batch > tokens)
        flat = used_numbers(chosen[rows], experts)
        draws.append(np.bincount(flat, minlength=layers * experts))
    return np.stack(draws).reshape(DRAWS, layers, experts)


def active_fraction(sample: Sample, batch: int, seed: int = 0) -> float:
    """Share of a layer's experts that at least one of `batch` independent tokens chooses."""
    return float((batch_loads(sample, batch, seed) > 0).mean())


def temperatures(sample: Sample, batch: int, seed: int = 0) -> dict[str, Temperature]:
    """Hot, warm and cold experts at a batch size (after TriMoE Fig. 3), idle ones being cold."""
    loads = batch_loads(sample, batch, seed)
    mean = batch * sample.experts_per_token / sample.num_experts
    cold, hot = loads < COLD_BELOW * mean, loads >= HOT_FROM * mean
    classes = {"hot": hot, "warm": ~cold & ~hot, "cold": cold}
    total = loads.sum()
    return {
        name: Temperature(float(which.mean()), float(loads[which].sum() / total))
        for name, which in classes.items()
    }
