"""Does the loop get the tokens of the trace, each where and when it should?"""

from __future__ import annotations

import timeit
from dataclasses import replace

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


def ragged_trace() -> MemoryTrace:
    """Two documents of three tokens; of top-3, their tokens use 1, 2, 3 and 3, 2, 1."""
    whole = example_trace([3, 3], top_k=3, ranks=4, counts=True, confidence=True)
    (block,) = whole.blocks()
    counts = np.array([1, 2, 3, 3, 2, 1], np.uint16)
    return MemoryTrace(whole.header, [replace(block, counts=counts)])


def test_tokens_use_as_many_experts_as_the_trace_says() -> None:
    trace = ragged_trace()
    (block,) = trace.blocks()
    steps = list(decode_steps(trace, batch=2))
    for at, (step, counts) in enumerate(zip(steps, [[1, 3], [2, 2], [3, 1]], strict=True)):
        assert step.uses == 4
        for layer in range(3):
            routing = step.layer(layer)
            assert routing.counts is not None
            assert routing.counts.tolist() == counts
            for token, row in enumerate((at, at + 3)):
                best = block.experts[row, layer, : counts[token]].tolist()
                assert routing.experts[token].tolist() == best + [-1] * (3 - counts[token])
                assert routing.ranked[token].tolist() == block.experts[row, layer].tolist()
                assert (routing.weights[token] > 0).sum() == counts[token]
        assert step.confidence is not None
        assert block.top is not None
        np.testing.assert_array_equal(step.confidence.top, block.top[[at, at + 3]])


def test_a_step_may_be_cut_again_and_again() -> None:
    """The same step, for a first attempt and for others."""
    step = next(decode_steps(ragged_trace(), batch=2))
    fewer = step.cut(np.array([2, 2]))
    assert fewer.counts is not None
    assert fewer.counts.tolist() == [1, 2], "never more than the trace has"
    assert fewer.layer(0).loads(8).sum() == 3
    assert step.layer(0).loads(8).sum() == 4
    assert np.array_equal(fewer.ranked, step.ranked)


def test_tokens_that_all_use_everything_are_not_ragged() -> None:
    trace = ragged_trace()
    (block,) = trace.blocks()
    whole = MemoryTrace(trace.header, [replace(block, counts=np.full(6, 3, np.uint16))])
    step = next(decode_steps(whole, batch=2))
    assert step.counts is None
    assert step.layer(0).counts is None
    assert step.uses == 6


def test_popularity_counts_used_experts() -> None:
    trace = ragged_trace()
    expected = np.zeros((3, 8), np.int64)
    for step in decode_steps(trace, batch=2):
        for layer in range(3):
            expected[layer] += step.layer(layer).loads(8)
    assert popularity(trace).tolist() == expected.tolist()
    assert popularity(trace, max_tokens=2).sum(axis=1).tolist() == [3, 3, 3]
