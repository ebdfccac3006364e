"""What a fit compares: a few statistics of every kind, of the real trace and of a trial."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from moesaic.workloads.stats.batches import active_fraction
from moesaic.workloads.stats.cache import lru_curve
from moesaic.workloads.stats.layers import predictability
from moesaic.workloads.stats.load import loads, max_over_mean, top_shares
from moesaic.workloads.stats.locality import independent_overlap, overlap, reuse_by_rank
from moesaic.workloads.stats.sample import Sample
from moesaic.workloads.stats.summary import Statistics
from moesaic.workloads.synthetic.calibration import Logits
from moesaic.workloads.synthetic.generate import best_experts
from moesaic.workloads.synthetic.latent import LatentModel

TRIAL_LAYERS = 8  # synthetic layers are all alike, so a few stand for the rest
TRIAL_TOKENS = 16_000


def fit_statistics(sample: Sample) -> Statistics:
    """What the search matches, each counting the same."""
    shares, caches = (0.1, 0.25, 0.5, 0.75), (0.25, 0.5, 0.75)
    lags, batches = (1, 2, 4, 8, 32), (8, 32, 128)
    distances = tuple(d for d in (1, 2, 3) if d < sample.num_layers)
    recalls, popular = predictability(sample, distances)
    reuse = reuse_by_rank(sample)[: sample.top_k]
    counts = loads(sample)
    return {
        "busiest": max_over_mean(counts) / 10,  # the one ratio, brought to the size of the rest
        "drift": independent_overlap(sample),
        "popular": popular,
        **_named("predict", distances, recalls),
        **_named("reuse", range(sample.top_k), reuse),
        **_named("share", shares, top_shares(counts, shares)),
        **_named("overlap", lags, [_overlap(sample, lag) for lag in lags]),
        **_named("lru_cold", caches, lru_curve(sample, caches, cold=True)),
        **_named("lru_warm", caches, lru_curve(sample, caches, cold=False)),
        **_named("active", batches, [active_fraction(sample, b) for b in batches]),
    }


def _overlap(sample: Sample, lag: int) -> float:
    """Zero where no document is long enough: real trace and trial are then alike in it."""
    return overlap(sample, lag) or 0.0


def trial_lengths(real: Sample) -> NDArray[np.int64]:
    """Lengths of evenly picked documents, about `TRIAL_TOKENS` in all."""
    lengths = real.lengths
    count = min(len(lengths), max(10, round(TRIAL_TOKENS / float(lengths.mean()))))
    return lengths[np.linspace(0, len(lengths) - 1, count).astype(np.int64)]


def trial_sample(logits: Logits, real: Sample, lengths: NDArray[np.int64], seed: int) -> Sample:
    """Synthetic routing as wide as the real trace, of a few layers and documents."""
    layers = min(TRIAL_LAYERS, real.num_layers)
    model = LatentModel(logits, layers, real.num_experts, seed)
    chosen = [
        best_experts(piece.logits, real.top_k).swapaxes(0, 1).astype(np.uint16)
        for document, length in enumerate(lengths)
        for piece in model.document(document, int(length))
    ]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Sample(np.concatenate(chosen), real.top_k, real.num_experts, starts, None)


def sharpness(logits: Logits, real: Sample, seed: int) -> float:
    """The sharpness that gives the best expert its real mean weight, by bisection: it changes
    the weights only, not the choice."""
    if real.weights is None:
        return logits.sharpness
    wanted, normalized = float(real.weights[..., 0].mean()), weights_sum_to_one(real)
    model = LatentModel(logits, min(TRIAL_LAYERS, real.num_layers), real.num_experts, seed)
    pieces = [next(model.document(d, 64)).logits for d in range(32)]
    ordered = -np.sort(-np.concatenate(pieces, axis=1), axis=-1)
    below_best = (ordered - ordered[..., :1])[..., : real.top_k if normalized else None]
    low, high = 0.0, 20.0
    for _ in range(24):
        middle = (low + high) / 2
        best = float((1.0 / np.exp(middle * below_best).sum(axis=-1)).mean())
        low, high = (middle, high) if best < wanted else (low, middle)
    return (low + high) / 2


def weights_sum_to_one(sample: Sample) -> bool:
    """Are the gate weights scaled over the chosen experts? (Stored weights are rounded.)"""
    return sample.weights is not None and abs(float(sample.weights.sum(-1).mean()) - 1) < 0.02


def _named(prefix: str, labels: Iterable[object], values: Iterable[float]) -> Statistics:
    return {f"{prefix}_{label}": v for label, v in zip(labels, values, strict=True)}
