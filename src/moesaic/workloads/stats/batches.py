"""What a batch of unrelated tokens asks of a layer's experts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.workloads.stats.load import used_numbers
from moesaic.workloads.stats.sample import Sample

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
