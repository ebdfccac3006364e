"""Does a large trace stay out of memory?"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_examples import example_block, example_header

from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.format import payload_size
from moesaic.workloads.source import TraceFile
from moesaic.workloads.steps import decode_steps, popularity
from moesaic.workloads.writer import write_trace

MB = 1_000_000
DOCUMENTS = 80


def peak_memory(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than 100 MB of routing: all ranks and scores of 64 experts in 26 layers."""
    path = tmp_path_factory.mktemp("large") / "large.moet"
    header = example_header(layers=26, experts=64, top_k=6, ranks=64, weights=False)
    block = example_block(header, [256])

    def blocks() -> Iterator[RoutingBlock]:
        for document in range(DOCUMENTS):
            yield replace(block, documents=np.full(256, document, np.uint32))

    written = peak_memory(lambda: write_trace(path, header, blocks()))
    assert written < 16 * MB
    assert payload_size(header, 256 * DOCUMENTS) > 100 * MB
    return path


def test_reading_holds_one_chunk(large: Path) -> None:
    assert peak_memory(lambda: sum(len(block) for block in TraceFile(large).blocks())) < 10 * MB


def test_playing_holds_the_documents_in_play(large: Path) -> None:
    """Four documents of 1.3 MB, and the steps made of them."""
    source = TraceFile(large)
    assert peak_memory(lambda: [s.tokens for s in decode_steps(source, 4, 600)]) < 25 * MB


def test_a_profile_reads_no_further_than_it_must(large: Path) -> None:
    assert popularity(TraceFile(large), 100).sum() == 100 * 26 * 6
