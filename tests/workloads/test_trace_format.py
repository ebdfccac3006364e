"""Does a trace come back as it was written, and is every damage noticed?"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_examples import example_block, example_header

from moesaic.core.errors import BadTrace
from moesaic.workloads.block import RoutingBlock, join
from moesaic.workloads.format import VERSION, payload_size
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.reader import TraceReader
from moesaic.workloads.source import TraceFile, open_trace
from moesaic.workloads.steps import decode_steps, popularity
from moesaic.workloads.writer import TraceWriter, write_trace

IN_A_FOLDER = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read_all(path: Path) -> list[RoutingBlock]:
    with TraceReader(path) as reader:
        return list(reader)


def same(a: RoutingBlock, b: RoutingBlock) -> bool:
    pairs = zip(a.arrays(), b.arrays(), strict=True)
    return all((x is None and y is None) or equal(x, y) for x, y in pairs)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@st.composite
def headers(draw: st.DrawFn) -> TraceHeader:
    experts = draw(st.sampled_from([1, 4, 64, 256, 300]))
    top_k = draw(st.integers(1, min(experts, 6)))
    return example_header(
        layers=draw(st.integers(1, 4)),
        experts=experts,
        top_k=top_k,
        ranks=draw(st.integers(top_k, min(experts, top_k * 2))),
        depth=draw(st.integers(0, 1)),
        weights=draw(st.booleans()),
        counts=draw(st.booleans()),
        confidence=draw(st.booleans()),
    )


@IN_A_FOLDER
@given(
    header=headers(),
    lengths=st.lists(st.integers(1, 30), max_size=5),
    chunk=st.integers(1, 4000),
    seed=st.integers(0, 100),
)
def test_round_trip(
    tmp_path: Path, header: TraceHeader, lengths: list[int], chunk: int, seed: int
) -> None:
    block = example_block(header, lengths, seed)
    path = tmp_path / "t.moet"
    with TraceWriter(path, header, chunk_bytes=chunk) as writer:
        writer.write(block)
    with TraceReader(path) as reader:
        assert reader.header == header
        back = list(reader)
    assert sum(map(len, back)) == len(block)
    if back:
        assert same(join(back), block)


def test_bytes_depend_on_content_only(tmp_path: Path) -> None:
    header = example_header(ranks=4)
    block = example_block(header, [40, 3, 50])
    write_trace(tmp_path / "a", header, [block])
    pieces = [block.rows(slice(i, i + 7)) for i in range(0, len(block), 7)]
    write_trace(tmp_path / "b", header, pieces)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("trace") / "small.moet"
    header = example_header(ranks=3, depth=1, counts=True, confidence=True)
    with TraceWriter(path, header, chunk_bytes=200) as writer:
        writer.write(example_block(header, [4, 3]))
    return path.read_bytes()


def test_any_flipped_byte_is_noticed(tmp_path: Path, small_file: bytes) -> None:
    path = tmp_path / "bad.moet"
    for position in range(len(small_file)):
        for mask in (0x01, 0x80):
            damaged = bytearray(small_file)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            with pytest.raises(BadTrace):
                read_all(path)


def test_any_truncation_is_noticed(tmp_path: Path, small_file: bytes) -> None:
    path = tmp_path / "short.moet"
    for length in range(len(small_file)):
        path.write_bytes(small_file[:length])
        with pytest.raises(BadTrace):
            read_all(path)


def test_bytes_after_the_end_are_noticed(tmp_path: Path, small_file: bytes) -> None:
    path = tmp_path / "long.moet"
    path.write_bytes(small_file + b"\0")
    with pytest.raises(BadTrace, match="last bytes"):
        read_all(path)


def test_errors_name_the_file_and_the_field(tmp_path: Path, small_file: bytes) -> None:
    path = tmp_path / "later.moet"
    path.write_bytes(small_file[:8] + b"\x63" + small_file[9:])
    with pytest.raises(BadTrace, match=r"later\.moet.*version: must be 1 or 2, is 99"):
        TraceReader(path)
    path.write_text("not a trace at all")
    with pytest.raises(BadTrace, match=r"\.moet trace or an \.npz"):
        open_trace(path)


def write_bad(path: Path, header: TraceHeader, **changes: object) -> None:
    block = example_block(header, [5])
    write_trace(path, header, [replace(block, **changes)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("experts", np.full((5, 3, 2), 8, np.uint8), "below 8"),
        ("experts", np.full((5, 3, 2), 1, np.uint8), "twice"),
        ("experts", np.zeros((5, 3, 3), np.uint8), "must be uint8"),
        ("experts", np.zeros((5, 3, 2), np.int64), "must be uint8"),
        ("weights", np.full((5, 3, 2), np.nan, np.float16), "finite"),
        ("weights", None, "missing"),
        ("scores", np.zeros((5, 3, 2), np.float16), "not announced"),
        ("phases", np.full(5, 2, np.uint8), "0 or 1"),
        ("positions", np.zeros(5, np.uint32), "rising"),
        ("documents", np.arange(5, 0, -1).astype(np.uint32), "rising"),
        ("counts", np.full(5, 2, np.uint16), "not announced"),
        ("margin", np.zeros(5, np.float32), "not announced"),
    ],
)
def test_a_bad_block_leaves_no_file(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    with pytest.raises(BadTrace, match=message):
        write_bad(tmp_path / "t.moet", example_header(), **{field: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("counts", np.array([1, 2, 3, 1, 1], np.uint16), "counts: must be from 1 to 2, .* 1 to 3"),
        ("counts", np.array([1, 2, 0, 1, 1], np.uint16), "counts: must be from 1 to 2"),
        ("counts", None, "missing"),
        ("top", np.full(5, 1.5, np.float32), "top: must be a probability"),
        ("margin", np.full(5, -0.1, np.float32), "margin: must be a probability"),
        ("entropy", np.full(5, np.inf, np.float32), "entropy: must be finite"),
        ("entropy", np.zeros(5, np.float16), "must be float32"),
    ],
)
def test_bad_values_of_tokens_leave_no_file(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    header = example_header(counts=True, confidence=True)
    with pytest.raises(BadTrace, match=message):
        write_bad(tmp_path / "t.moet", header, **{field: value})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_version_1_is_still_read() -> None:
    """Written when tokens had neither counts nor confidence."""
    path = Path(__file__).parent / "version_1.moet"
    assert path.read_bytes()[8:10] == b"\x01\x00"
    header = example_header(ranks=3, depth=1)
    source = open_trace(path)
    assert source.header == header
    whole = join(list(source.blocks()))
    assert same(whole, example_block(header, [4, 3]))
    assert all(column is None for column in (whole.counts, whole.top, whole.margin, whole.entropy))


def test_a_header_of_version_1_has_no_fields_of_version_2() -> None:
    text = example_header().to_json()
    with pytest.raises(BadTrace, match=r"'has_confidence'|'has_counts'"):
        TraceHeader.from_json(text, "x", version=1)
    old = text.replace('"has_confidence":false,"has_counts":false,', "")
    assert TraceHeader.from_json(old, "x", version=1) == example_header()
    with pytest.raises(BadTrace, match="is missing"):
        TraceHeader.from_json(old, "x", version=2)


def test_an_error_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.moet"
    path.write_text("old")

    def interrupted() -> None:
        with TraceWriter(path, example_header()) as writer:
            writer.write(example_block(writer.header, [3]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 9}, "top_k: must be from 1 to 8"),
        ({"ranks": 1}, "ranks"),
        ({"ranks": 4}, "need scores"),
        ({"num_layers": 0}, "num_layers"),
    ],
)
def test_headers_that_make_no_sense(tmp_path: Path, change: dict[str, int], message: str) -> None:
    header = replace(example_header(), **change)  # type: ignore[arg-type]
    with pytest.raises(BadTrace, match=message):
        TraceWriter(tmp_path / "t.moet", header)


def test_unknown_and_missing_header_fields() -> None:
    text = example_header().to_json()
    with pytest.raises(BadTrace, match="colour"):
        TraceHeader.from_json(text.replace('"model"', '"colour"'), "x", VERSION)
    with pytest.raises(BadTrace, match=r"'top_k'.*must be int"):
        TraceHeader.from_json(text.replace('"top_k":2', '"top_k":"2"'), "x", VERSION)


# Does the example in the documentation run?

DOCUMENT = Path(__file__).parents[2] / "docs" / "trace-format.md"


def test_the_example_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(DOCUMENT), "exec"), {})


# Does a large trace stay out of memory?

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
