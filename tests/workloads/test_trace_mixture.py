"""Does a mixture have a document of everything in turn, and still know what each is about?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.record_routing_mixture import introduced, mixture, without_repeated_weights
from trace_examples import example_block, example_header, example_trace

from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.block import join
from moesaic.workloads.documents import documents
from moesaic.workloads.domains import domains_of, with_domains
from moesaic.workloads.source import MemoryTrace, open_trace
from moesaic.workloads.writer import write_trace


def about(domain: str, lengths: list[int], seed: int) -> MemoryTrace:
    trace = example_trace(lengths, seed)
    header = with_domains(trace.header, [f"{domain}{n}" for n in range(len(lengths))])
    return MemoryTrace(header, list(trace.blocks()))


def test_documents_come_in_turn_and_keep_their_domains(tmp_path: Path) -> None:
    sources = [about("a", [3, 4, 5], 1), about("b", [2], 2), about("c", [6, 1], 3)]
    mixed = mixture(sources)
    assert domains_of(mixed.header) == ("a0", "b0", "c0", "a1", "c1", "a2")
    found = list(documents(mixed))
    assert [len(document) for document in found] == [3, 2, 6, 4, 1, 5]
    assert np.array_equal(found[2].experts, next(documents(sources[2])).experts)
    path = tmp_path / "mixed.moet"
    assert write_trace(path, mixed.header, mixed.blocks()) == 21  # which checks their order
    assert domains_of(open_trace(path).header) == domains_of(mixed.header)


def test_a_limited_one_ends_with_a_whole_document() -> None:
    sources = [about("a", [3, 4], 1), about("b", [2, 9], 2)]
    few = mixture(sources, max_tokens=10)
    assert [len(document) for document in documents(few)] == [3, 2, 4]
    assert domains_of(few.header) == ("a0", "b0", "a1")


def test_an_introduction_has_the_ends_of_every_source() -> None:
    sources = [about("a", [3, 4, 5], 1), about("b", [2, 3], 2)]
    whole = introduced(mixture(sources, max_tokens=5), sources, tokens=4)
    found = list(documents(whole))
    assert [len(document) for document in found] == [4, 3, 1, 3, 2]
    assert domains_of(whole.header) == ("a2", "b1", "b0", "a0", "b0")
    last = list(documents(sources[0]))[2]
    assert np.array_equal(found[0].experts, last.experts[1:])


def test_a_source_may_not_tell_its_domains() -> None:
    sources = [about("a", [3], 1), example_trace([2], 2)]
    mixed = mixture(sources)
    assert domains_of(mixed.header) == ("a0", "")
    assert domains_of(introduced(mixed, sources, tokens=1).header) == ("a0", "", "a0", "")
    assert domains_of(mixture(sources[1:]).header) == ()


def test_only_traces_of_one_model_are_mixed() -> None:
    with pytest.raises(ImpossibleSetting, match="of one model"):
        mixture([example_trace([3]), example_trace([3], experts=16)])
    with pytest.raises(ImpossibleSetting, match="at least one"):
        mixture([])


def test_weights_that_are_the_scores_again_are_left_out() -> None:
    header = example_header(ranks=4)
    block = example_block(header, [5])
    assert block.scores is not None
    rounded = (block.scores[..., :2].astype(np.float32) * 1.001).astype(np.float16)
    same = MemoryTrace(header, [replace(block, weights=rounded)])
    slim = without_repeated_weights(same)
    assert not slim.header.has_weights
    assert join(list(slim.blocks())).weights is None
    other = MemoryTrace(header, [block])
    assert without_repeated_weights(other) is other
    assert block.weights is not None
