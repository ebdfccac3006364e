"""Is greedy the argmax, and is it cheap?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import stock_sampling as stock
import torch
from sampling_examples import EVERYTHING, GREEDY, logits_of

from moesaic.engine.generation.row_state import RowState
from moesaic.engine.generation.sampler import Sampler
from moesaic.engine.generation.sampling_params import SamplingParams


def test_greedy_takes_the_first_of_equals_and_leaves_the_logits_alone() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [-3.0, -1.0, -2.0, -1.0]]).bfloat16()
    rows = [RowState.start(GREEDY, [1]), RowState.start(GREEDY, [])]
    assert [one.token for one in Sampler().sample(logits, rows)] == [1, 1]
    before = logits.clone()
    mixed = [RowState.start(EVERYTHING, [1]), RowState.start(replace(GREEDY, min_tokens=1), [])]
    Sampler([1]).sample(logits, mixed)
    assert torch.equal(logits, before)


def test_greedy_with_a_penalty_is_the_argmax_of_the_stock_scores() -> None:
    logits, params = logits_of(8, 500), replace(GREEDY, repetition_penalty=1.5)
    best = logits[0].topk(3).indices.tolist()
    seen = [*best, 499, 600]  # the last is a token that the model can read but not write
    sampled = Sampler().sample(logits, [RowState.start(params, seen)])[0].token
    assert sampled not in best
    penalty = stock.processors(replace(params, temperature=1.0), 1)
    assert sampled == int(penalty(torch.tensor([seen]), logits.clone()).argmax())


def test_the_coldest_sampling_is_greedy() -> None:
    logits = logits_of(9, 50, 2)
    logits[:, 3] = float("-inf")
    for params in (SamplingParams(temperature=5e-324), SamplingParams(top_k=5, temperature=1e-30)):
        sampled = Sampler().sample(logits, [RowState.start(params, []) for _ in range(2)])
        assert [one.token for one in sampled] == logits.argmax(-1).tolist()


def best_time(work: Callable[[], object]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def test_no_vocabulary_is_sorted_where_that_is_not_needed() -> None:
    """Measured on 150 000 tokens: greedy costs a hundredth of a sort, top-k a tenth."""
    logits = logits_of(10, 150_000)
    sort = best_time(logits.sort)
    sampler = Sampler()
    greedy, top_k = (RowState.start(p, [1]) for p in (GREEDY, SamplingParams(top_k=50)))
    assert best_time(lambda: sampler.sample(logits, [greedy])) < sort / 20
    assert best_time(lambda: sampler.sample(logits, [top_k])) < sort / 3
