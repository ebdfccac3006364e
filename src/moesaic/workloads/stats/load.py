"""How unevenly traffic falls on the experts of a layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.workloads.stats.sample import Sample


def loads(sample: Sample) -> NDArray[np.int64]:
    """How often each expert was chosen, [L, E]."""
    layers, experts = sample.num_layers, sample.num_experts
    flat = sample.chosen.astype(np.int64) + np.arange(layers)[:, None] * experts
    counts = np.bincount(flat.ravel(), minlength=layers * experts)
    return counts.reshape(layers, experts)


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
