"""Requests and logits that the sampling tests share, and what the sampler draws from, laid open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from moesaic.engine.sampling.candidates import candidates
from moesaic.engine.sampling.sampler import Sampler, apply_repetition_penalty
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState

torch.set_num_threads(1)

GREEDY = SamplingParams(temperature=0.0)
EVERYTHING = SamplingParams(
    temperature=0.7, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.3
)
ASSORTED = [
    SamplingParams(),
    GREEDY,
    EVERYTHING,
    SamplingParams(temperature=1.5),
    SamplingParams(top_k=1),
    SamplingParams(top_k=5),
    SamplingParams(top_k=100, temperature=0.3),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.999, temperature=3.0),
    SamplingParams(min_p=0.3),
    SamplingParams(top_k=50, min_p=0.1),
    SamplingParams(temperature=0.0, repetition_penalty=1.8),
    SamplingParams(top_p=0.8, repetition_penalty=0.7),
]


def logits_of(seed: int, vocabulary: int, rows: int = 1, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def probabilities(
    logits: torch.Tensor, params: Sequence[SamplingParams], seen: Sequence[int] = (0,)
) -> torch.Tensor:
    """What the sampler draws from, [rows, vocabulary]."""
    scores = logits.clone()
    apply_repetition_penalty(scores, [SamplingState.start(p, seen) for p in params])
    dense = torch.full(scores.shape, float("nan"), dtype=torch.float64)
    for group in candidates(scores, params):
        shares = group.weights.double() / group.weights.sum(-1, keepdim=True, dtype=torch.float64)
        for row, place in enumerate(group.rows):
            assert dense[place].isnan().all(), "a row is given once"
            ids = range(scores.shape[1]) if group.ids is None else group.ids[row].tolist()
            dense[place] = 0.0
            dense[place, ids] = shares[row]
    return dense


def draws(logits: torch.Tensor, params: SamplingParams, count: int, prompt: int = 0) -> list[int]:
    """The first token of as many requests as `count`, each with a seed of its own."""
    found = []
    for start in range(0, count, 1000):
        rows = [
            SamplingState.start(replace(params, seed=seed), [prompt])
            for seed in range(start, start + 1000)
        ]
        sampled = Sampler().sample(logits.expand(len(rows), -1), rows)
        found += [one.token for one in sampled]
    return found
