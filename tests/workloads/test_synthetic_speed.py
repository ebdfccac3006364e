"""Is a synthetic trace the same however it is made: compiled or not, with a second process or
without, and when that process dies?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.block import RoutingBlock, join
from moesaic.workloads.source import MemoryTrace
from moesaic.workloads.steps import decode_steps
from moesaic.workloads.synthetic import generate, second_process
from moesaic.workloads.synthetic.best_of_rows import best_of_rows
from moesaic.workloads.synthetic.calibration import load_calibration
from moesaic.workloads.synthetic.generate import TraceShape, best_experts, synthesize
from moesaic.workloads.synthetic.latent import LatentModel

SHAPE = TraceShape("small", 4, 16, 2)


def sorted_columns(rows: np.ndarray, width: int) -> np.ndarray:
    return np.argsort(-rows, axis=-1, kind="stable")[:, :width]


@pytest.mark.parametrize(("columns", "width"), [(128, 16), (16, 4), (8, 7), (64, 1)])
def test_the_best_of_rows_are_the_largest_in_order(columns: int, width: int) -> None:
    rows = np.random.default_rng(columns).standard_normal((500, columns), dtype=np.float32)
    rows[:100] *= 30.0  # far from the first guess
    rows[100:200] += 50.0
    found, tied = best_of_rows(rows, width)
    assert not tied.any()
    np.testing.assert_array_equal(found, sorted_columns(rows, width))


def test_rows_whose_order_equal_values_decide_are_marked() -> None:
    rows = np.tile(np.arange(8, dtype=np.float32), (5, 1))  # best three: 7, 6, 5
    rows[1, 0] = 7.0  # first and first
    rows[2, 1] = 5.0  # third and fourth
    rows[3, 0] = 1.0  # far below: of no account
    rows[4, 0] = 6.0
    _, tied = best_of_rows(rows, 3)
    assert tied.tolist() == [False, True, True, False, True]


def test_equal_values_are_ranked_as_numpy_ranks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 30, (3, 200, 32)).astype(np.float32)  # ties in nearly every row
    before = best_experts(logits, 6)
    monkeypatch.setattr(generate, "COMPILED_FROM", 0)
    np.testing.assert_array_equal(best_experts(logits, 6), before)


def test_a_product_in_parts_is_the_whole_product() -> None:
    """But for the last bit: at a matrix's edge BLAS may add in another order."""
    model = LatentModel(load_calibration("deepseek-v2-lite-prefill").logits, 40, 8, 0)
    white = np.random.default_rng(3).standard_normal((40, 700 * 6), dtype=np.float32)
    found = model._latent(np.random.default_rng(3), 700)
    np.testing.assert_allclose(found.reshape(40, -1), model._depth @ white, rtol=0, atol=2e-6)


def trace() -> Iterator[RoutingBlock]:
    calibration = load_calibration("deepseek-v2-lite-prefill")
    return synthesize(calibration, SHAPE, 3000, seed=1).blocks()


def assert_same(found: RoutingBlock, expected: RoutingBlock) -> None:
    for one, other in zip(found.arrays(), expected.arrays(), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[second_process._Ahead]:
    """The helpers of traces that ask for one at once."""
    made: list[second_process._Ahead] = []

    class Noted(second_process._Ahead):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(second_process, "_Ahead", Noted)
    monkeypatch.setattr(generate, "ALONE_LOGITS", 0)
    monkeypatch.setattr(generate, "_second_core", lambda: True)
    return made


@pytest.fixture
def alone() -> RoutingBlock:
    """The trace as one process makes it: so small a one asks for no other."""
    return join(list(trace()))


def test_a_second_process_changes_nothing(
    alone: RoutingBlock, started: list[second_process._Ahead]
) -> None:
    blocks = trace()
    found = [next(blocks), next(blocks)]
    (helper,) = started
    with helper._changed:
        assert helper._changed.wait_for(lambda: helper._answers, timeout=60), "does not work ahead"
    assert_same(join([*found, *blocks]), alone)
    assert helper._process.returncode is not None, "it outlives the trace"


def test_a_reader_that_stops_early_ends_the_process(started: list[second_process._Ahead]) -> None:
    blocks = trace()
    next(blocks)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert started[0]._process.returncode is not None


def test_documents_of_a_process_that_died_are_made_by_the_reader(
    alone: RoutingBlock, started: list[second_process._Ahead]
) -> None:
    blocks = trace()
    found = [next(blocks), next(blocks)]
    started[0]._process.kill()
    assert_same(join([*found, *blocks]), alone)


def test_work_ahead_is_bounded(
    monkeypatch: pytest.MonkeyPatch, started: list[second_process._Ahead]
) -> None:
    monkeypatch.setattr(second_process, "AHEAD_TOKENS", 300)
    blocks = trace()
    next(blocks)
    next(blocks)
    helper = started[0]
    with helper._changed:
        helper._changed.wait_for(lambda: helper._tokens >= 300 and not helper._asked, timeout=60)
        longest = load_calibration("deepseek-v2-lite-prefill").document_tokens[-1]
        assert 300 <= helper._tokens < 300 + second_process._IN_LINE * longest
    blocks.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("skip", [0, 1, 300])
def test_a_batch_reads_the_same_of_documents_made_only_as_far_as_it_reads(
    batch: int, skip: int
) -> None:
    calibration = load_calibration("gpt-oss-20b-decode")  # documents longer than a piece, and not
    made = synthesize(calibration, SHAPE, 3000, seed=2)
    whole = MemoryTrace(made.header, list(made.blocks()))
    for steps in (40, 300):
        found = list(decode_steps(made, batch, steps, skip_tokens=skip))
        expected = list(decode_steps(whole, batch, steps, skip_tokens=skip))
        assert len(found) == steps
        for one, other in zip(found, expected, strict=True):
            assert one.step == other.step
            for layer in range(SHAPE.num_layers):
                a, b = one.layer(layer), other.layer(layer)
                np.testing.assert_array_equal(a.experts, b.experts)
                np.testing.assert_array_equal(a.scores, b.scores)


def test_no_token_is_made_that_a_batch_does_not_read() -> None:
    calibration = load_calibration("gpt-oss-20b-decode")
    made = synthesize(calibration, SHAPE, 3000, seed=2)
    for batch, steps, skip in [(1, 700, 0), (4, 60, 300), (3, 1, 51)]:
        blocks = made.blocks_of_batch(batch, steps, skip)
        assert sum(map(len, blocks)) == batch * steps


def test_a_trace_that_is_too_short_for_a_batch_still_says_so() -> None:
    made = synthesize(load_calibration("gpt-oss-20b-decode"), SHAPE, 900, seed=2)
    with pytest.raises(ImpossibleSetting, match="has 900 tokens"):
        list(decode_steps(made, 4, 600))
