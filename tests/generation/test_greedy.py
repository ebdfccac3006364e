"""Is greedy the argmax, and is it cheap?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import stock_sampling as stock
import torch
from sampling_examples import EVERYTHING, GREEDY, logits_of
from torch.utils._python_dispatch import TorchDispatchMode

from moesaic.engine.sampling.candidates import best_tokens, candidates, tokens_from
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState


def test_greedy_takes_the_first_of_equals_and_leaves_the_logits_alone() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [-3.0, -1.0, -2.0, -1.0]]).bfloat16()
    rows = [SamplingState.start(GREEDY, [1]), SamplingState.start(GREEDY, [])]
    assert [one.token for one in Sampler().sample(logits, rows)] == [1, 1]
    before = logits.clone()
    mixed = [
        SamplingState.start(EVERYTHING, [1]),
        SamplingState.start(replace(GREEDY, min_tokens=1), []),
    ]
    Sampler([1]).sample(logits, mixed)
    assert torch.equal(logits, before)


def test_greedy_with_a_penalty_is_the_argmax_of_the_stock_scores() -> None:
    logits, params = logits_of(8, 500), replace(GREEDY, repetition_penalty=1.5)
    best = logits[0].topk(3).indices.tolist()
    seen = [*best, 499, 600]  # the last is a token that the model can read but not write
    sampled = Sampler().sample(logits, [SamplingState.start(params, seen)])[0].token
    assert sampled not in best
    penalty = stock.processors(replace(params, temperature=1.0), 1)
    assert sampled == int(penalty(torch.tensor([seen]), logits.clone()).argmax())


def test_the_coldest_sampling_is_greedy() -> None:
    logits = logits_of(9, 50, 2)
    logits[:, 3] = float("-inf")
    for params in (SamplingParams(temperature=5e-324), SamplingParams(top_k=5, temperature=1e-30)):
        sampled = Sampler().sample(logits, [SamplingState.start(params, []) for _ in range(2)])
        assert [one.token for one in sampled] == logits.argmax(-1).tolist()


class Watched(TorchDispatchMode):  # type: ignore[misc]
    """Which operations of torch made at least so many values, and which put values in order."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self._many = many
        self.large: list[str] = []
        self.ordered: list[int] = []  # values each such operation returned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name, made = str(func), result[0] if isinstance(result, tuple) else result
        if isinstance(made, torch.Tensor) and not func.is_view and made.numel() >= self._many:
            self.large.append(name)
        if name.startswith(("aten.sort", "aten.argsort", "aten.topk")):
            self.ordered.append(made.numel())
        return result


def watch(params: SamplingParams) -> Watched:
    """Work, not time: other programs do not change it."""
    logits = logits_of(10, 150_000)
    seen = Watched(150_000)
    with seen:
        Sampler().sample(logits, [SamplingState.start(params, [1])])
    return seen


def test_greedy_computes_nothing_for_every_token() -> None:
    """Beyond one look for the largest, which numpy does."""
    seen = watch(GREEDY)
    assert seen.large == []
    assert seen.ordered == []


def test_no_vocabulary_is_sorted_for_the_few_likeliest() -> None:
    seen = watch(SamplingParams(top_k=50))
    assert seen.large == []
    assert seen.ordered == []
    (group,) = candidates(logits_of(10, 150_000), [SamplingParams(top_k=50)])
    assert group.weights.numel() < 100  # which were sorted


def test_a_row_that_is_changed_is_copied_once() -> None:
    seen = watch(SamplingParams(top_k=50, repetition_penalty=1.5))
    in_place = "aten.index_put_.default"
    assert [name for name in seen.large if name != in_place] == ["aten.index.Tensor"]


# Are the likeliest tokens found without sorting, and none of those tied with them lost?


def scores_of(seed: int, vocabulary: int, step: float) -> np.ndarray:
    """Multiples of `step`, so that some are equal."""
    found = np.random.default_rng(seed).normal(size=vocabulary)
    return (np.round(found / step) * step).astype(np.float32)


@pytest.mark.parametrize("vocabulary", [3, 64, 1000, 20_007])
@pytest.mark.parametrize("step", [1e-5, 0.3])
def test_the_best_are_among_the_found_ones(vocabulary: int, step: float) -> None:
    for seed in range(20):
        scores = scores_of(seed, vocabulary, step)
        for count in (1, 2, 40, 512, vocabulary - 1, vocabulary, 10**30):
            if count < 1:
                continue
            found = best_tokens(scores, count)
            last = np.sort(scores)[max(vocabulary - count, 0)]
            assert (np.diff(found) > 0).all()
            assert set(np.flatnonzero(scores >= last)) <= set(found)


def test_few_others_are_found_with_them() -> None:
    """Or sorting them would take as long as sorting all."""
    scores = scores_of(1, 151_936, 1e-5)
    assert len(best_tokens(scores, 40)) < 60
    assert len(best_tokens(scores, 512)) < 800


@pytest.mark.parametrize("vocabulary", [5, 300, 20_007])
@pytest.mark.parametrize("bound", [-9.0, 0.3, 1.2, 2.7, 9.0])
def test_all_scores_from_a_bound_on_are_found(vocabulary: int, bound: float) -> None:
    for seed in range(10):
        scores = scores_of(seed, vocabulary, 0.3)
        assert np.array_equal(
            tokens_from(scores, bound), np.flatnonzero(scores >= np.float32(bound))
        )
