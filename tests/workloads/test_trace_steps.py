"""Does the loop get the tokens of the trace, each where and when it should?"""

from __future__ import annotations

import timeit

import numpy as np
import pytest
from trace_examples import example_trace

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.step import Step
from moesaic.workloads.block import DECODE, PREFILL, join
from moesaic.workloads.documents import documents
from moesaic.workloads.source import MemoryTrace
from moesaic.workloads.steps import decode_steps, popularity, prefill_steps


def test_decode_plays_documents_side_by_side() -> None:
    trace = example_trace([3, 1, 2, 4])
    steps = list(decode_steps(trace, batch=2))
    block = join(list(trace.blocks()))
    # place 0 plays document 0 then 3; place 1 plays 1, then 2
    expected = [[0, 3], [1, 4], [2, 5]]
    assert len(steps) == 3
    for step, rows in zip(steps, expected, strict=True):
        assert (step.phase, step.tokens, step.documents) == ("decode", 2, 2)
        assert step.step.num_sequences == 2
        for layer in range(3):
            assert np.array_equal(step.layer(layer).experts, block.experts[rows, layer])


def test_context_is_the_mean_position() -> None:
    found = [s.step for s in decode_steps(example_trace([5, 5]), batch=2)]
    assert found == [Step.decode(2, context) for context in range(5)]


def test_asking_for_too_much_says_what_there_is() -> None:
    with pytest.raises(ImpossibleSetting, match=r"10 tokens in 4 documents, enough for 3 steps"):
        list(decode_steps(example_trace([3, 1, 2, 4]), batch=2, steps=4))
    with pytest.raises(ImpossibleSetting, match=r"7 tokens in 3 documents after the first 3"):
        list(prefill_steps(example_trace([3, 1, 2, 4]), 4, prompts=2, skip_tokens=3))
    with pytest.raises(ImpossibleSetting, match="batch must be at least 1"):
        list(decode_steps(example_trace([3]), batch=0))


def test_wrapping_around_never_ends_and_is_not_in_lockstep() -> None:
    trace = example_trace([30, 20])
    steps = list(decode_steps(trace, batch=3, steps=100, wrap=True))
    assert len(steps) == 100
    first = steps[0].experts
    assert not np.array_equal(first[:, 0], first[:, 2])  # the same document, elsewhere


def test_prefill_takes_consecutive_tokens() -> None:
    trace = example_trace([6, 2, 2, 9])
    block = join(list(trace.blocks()))
    steps = list(prefill_steps(trace, tokens=4))
    assert [s.documents for s in steps] == [1, 2, 2, 1]
    for index, step in enumerate(steps):
        rows = slice(4 * index, 4 * index + 4)
        assert np.array_equal(step.layer(2).experts, block.experts[rows, 2])
        assert step.step == Step.prompt(4)


def test_tokens_of_the_phase_are_preferred() -> None:
    trace = example_trace([6])
    block = join(list(trace.blocks()))
    block.phases[:] = [PREFILL] * 4 + [DECODE] * 2
    source = MemoryTrace(trace.header, [block])
    assert [s.step for s in decode_steps(source, 1)] == [Step.decode(1, 4), Step.decode(1, 5)]
    assert len(list(prefill_steps(source, 1))) == 4


def test_skipping_the_profile_part() -> None:
    trace = example_trace([3, 4])
    assert [len(d) for d in documents(trace, 2)] == [1, 4]
    assert [len(d) for d in documents(trace, 3)] == [4]
    assert list(documents(trace, 7)) == []


def test_documents_are_joined_across_blocks() -> None:
    trace = example_trace([5, 1, 6])
    block = join(list(trace.blocks()))
    for size in (1, 2, 5, 6):
        cut = [block.rows(slice(i, i + size)) for i in range(0, len(block), size)]
        assert [len(d) for d in documents(MemoryTrace(trace.header, cut))] == [5, 1, 6]


def test_popularity_counts_the_chosen_only() -> None:
    trace = example_trace([10], ranks=4)
    block = join(list(trace.blocks()))
    counts = popularity(trace, 6)
    assert counts.shape == (3, 8)
    assert counts.sum() == 6 * 3 * 2
    assert counts[1, 5] == (block.experts[:6, 1, :2] == 5).sum()


def test_layers_are_typed_contiguous_and_complete() -> None:
    step = next(decode_steps(example_trace([4, 4], ranks=5, depth=2), batch=2))
    routing = step.layer(1)
    for array, dtype in (
        (routing.experts, np.int64),
        (routing.weights, np.float32),
        (routing.ranked, np.int64),
        (routing.scores, np.float32),
    ):
        assert array.dtype == dtype
        assert array.flags.c_contiguous
    assert np.array_equal(routing.ranked[:, :2], routing.experts)
    assert [f.layer for f in step.layer(0).forecasts] == [1, 2]
    assert [f.layer for f in routing.forecasts] == [2]
    assert step.layer(2).forecasts == ()
    assert routing.forecasts[0].ranked.shape == (2, 3)


@pytest.mark.parametrize(("weights", "ranks"), [(False, 2), (False, 4), (True, 2)])
def test_weights_and_scores_stand_in_for_each_other(weights: bool, ranks: int) -> None:
    trace = example_trace([2], ranks=ranks, weights=weights)
    routing = next(decode_steps(trace, 1)).layer(0)
    if not weights and ranks == 2:
        assert np.allclose(routing.weights, 0.5)
    assert np.array_equal(routing.scores[:, :2], routing.weights)


def test_a_layer_costs_microseconds() -> None:
    step = next(decode_steps(example_trace([4] * 8, layers=26, experts=64), batch=8))
    best = min(timeit.repeat(lambda: step.layer(7), number=1000, repeat=5)) / 1000
    assert best < 20e-6  # about 2 us when the machine is quiet
