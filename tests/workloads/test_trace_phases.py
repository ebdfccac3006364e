"""Are prompts and answers of a trace separated, and sampled from all over it?"""

from __future__ import annotations

import numpy as np
import pytest
from trace_examples import example_block, example_header

from moesaic.workloads.block import DECODE, PREFILL, join
from moesaic.workloads.source import MemoryTrace
from moesaic.workloads.stats.phases import PARTS, of_phase, phases_of, profile_trace
from moesaic.workloads.stats.sample import beginnings, collect, spread


def answered(prompt: int, answer: int, documents: int) -> MemoryTrace:
    header = example_header()
    block = example_block(header, [prompt + answer] * documents)
    block.phases[:] = np.where(block.positions < prompt, PREFILL, DECODE)
    return MemoryTrace(header, [block])


def test_phases_are_separated() -> None:
    trace = answered(3, 5, documents=4)
    assert phases_of(trace) == ("prefill", "decode")
    answers = join(list(of_phase(trace, "decode").blocks()))
    assert len(answers) == 20
    assert set(answers.positions) == {3, 4, 5, 6, 7}
    assert answers.documents.tolist() == [d for d in range(4) for _ in range(5)]
    assert phases_of(answered(3, 0, documents=2)) == ("prefill",)


def test_a_profile_is_of_one_phase_and_counts_its_parts() -> None:
    calls: list[int] = []
    found = profile_trace(answered(3, 40, documents=6), "decode", 1000, lambda: calls.append(1))
    assert len(calls) == PARTS
    assert (found.documents, found.tokens, found.phase) == (6, 240, "decode")
    assert found.statistics["overlap_uniform"] == pytest.approx(2 / 8)
    assert len(found.overlap_by_layer) == 3
    assert found.load_curve[0] == 0.0
    assert found.load_curve[-1] == pytest.approx(1.0)


def test_a_spread_sample_has_whole_documents_of_both_ends() -> None:
    whole = collect(answered(0, 10, documents=20))
    some = spread(whole, 50)
    assert some.lengths.tolist() == [10] * 5
    assert np.array_equal(some.ranked[:10], whole.ranked[:10])
    assert np.array_equal(some.ranked[-10:], whole.ranked[-10:])
    assert spread(whole, 200) is whole


@pytest.mark.parametrize("tokens", [1, 7, 10, 54, 55, 199])
def test_a_spread_sample_has_no_more_tokens_than_asked_for(tokens: int) -> None:
    """A document may be longer than all that is to be looked at."""
    for documents in (1, 3, 20):
        some = spread(collect(answered(0, 200 // documents, documents)), tokens)
        assert len(some.ranked) == some.starts[-1] <= tokens
        assert (some.lengths > 0).all()
        assert len(some.document_of) == len(some.ranked)


def test_beginnings_are_cut_from_every_document() -> None:
    whole = collect(answered(0, 10, documents=3))
    cut = beginnings(whole, 4)
    assert cut.lengths.tolist() == [4, 4, 4]
    assert np.array_equal(cut.ranked[4:8], whole.ranked[10:14])
    assert beginnings(whole, 99).lengths.tolist() == [10, 10, 10]
    found = profile_trace(answered(2, 10, documents=3), "decode", 1000, first=5)
    assert (found.tokens, found.documents) == (15, 3)
