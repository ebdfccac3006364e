"""Are the statistics what their definitions say? Checked by hand on tiny traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from trace_examples import example_header, example_trace

from moesaic.core.errors import BadFile
from moesaic.workloads.source import MemoryTrace
from moesaic.workloads.stats.cache import lru_curve
from moesaic.workloads.stats.load import (
    active_fraction,
    entropy,
    gini,
    later_window_loads,
    loads,
    max_over_mean,
    min_over_mean,
    temperatures,
    top_shares,
    window_loads,
)
from moesaic.workloads.stats.locality import (
    document_overlap,
    global_overlap,
    independent_overlap,
    overlap,
    predictability,
    reuse_by_rank,
)
from moesaic.workloads.stats.phases import totals
from moesaic.workloads.stats.sample import Sample, collect
from moesaic.workloads.stats.summary import GROUPS, PARTS, describe, group_of


def one_layer(tokens: list[list[int]], experts: int = 4, starts: tuple[int, ...] = ()) -> Sample:
    ranked = np.array(tokens, dtype=np.uint8)[:, None, :]
    bounds = np.array([0, *starts, len(tokens)], dtype=np.int64)
    return Sample(ranked, ranked.shape[2], experts, bounds, None)


def test_top_shares_by_hand() -> None:
    sample = one_layer([[0], [0], [0], [1], [1], [2]])
    counts = loads(sample)
    assert counts.tolist() == [[3, 2, 1, 0]]
    assert top_shares(counts, (0.25, 0.5, 0.625, 1.0)) == pytest.approx([3 / 6, 5 / 6, 5.5 / 6, 1])
    assert max_over_mean(counts) == 2.0
    assert global_overlap(counts, 6, 1) == pytest.approx((9 + 4 + 1) / 36)


def test_inequality_by_hand() -> None:
    counts = np.array([[3, 2, 1, 0]])
    differences = sum(abs(a - b) for a in counts[0] for b in counts[0])
    assert gini(counts) == pytest.approx(differences / (2 * 4 * 6))
    assert gini(np.array([[5, 5]])) == 0.0
    assert gini(np.array([[0, 0, 0, 9]])) == pytest.approx(3 / 4)
    assert min_over_mean(np.array([[1, 3]])) == pytest.approx(0.5)
    assert entropy(np.array([[7, 7, 7]])) == pytest.approx(1.0)
    assert entropy(np.array([[8, 8, 0, 0]])) == pytest.approx(0.5)
    assert entropy(np.array([[6]])) == 1.0


def test_load_of_beginnings_by_hand() -> None:
    sample = one_layer([[0], [0], [1], [2], [3], [3]], starts=(3, 4))
    assert window_loads(sample, 2).tolist() == [[[2, 0, 0, 0]], [[0, 0, 0, 2]]]
    assert window_loads(sample, 9).shape == (0, 1, 4)


def test_load_of_what_follows_the_beginning_by_hand() -> None:
    """Documents of 5, 1 and 4 tokens: whole windows only, none across documents."""
    chosen = [[0], [0], [1], [2], [3], [3], [0], [0], [2], [2]]
    sample = one_layer(chosen, starts=(5, 6))
    assert later_window_loads(sample, 2).tolist() == [[[0, 1, 1, 0]], [[0, 0, 2, 0]]]
    assert later_window_loads(sample, 3).shape == (0, 1, 4)


def test_any_two_tokens_of_a_document_by_hand() -> None:
    # {0,1}, {1,2}, {2,1}: pairs share 1, 1 and 2 of 2; {2,1}, {0,3}: none
    sample = one_layer([[0, 1], [1, 2], [2, 1], [2, 1], [0, 3]], starts=(3,))
    assert document_overlap(sample) == pytest.approx((3 * (4 / 6) + 2 * 0) / 5)
    assert document_overlap(one_layer([[0], [1]], starts=(1,))) is None


def test_overlap_by_hand() -> None:
    # shared with the one before: 1 of 2, then 2 of 2, then a new document, then 0 of 2
    sample = one_layer([[0, 1], [1, 2], [2, 1], [2, 1], [0, 3]], starts=(3,))
    assert overlap(sample) == pytest.approx((0.5 + 1 + 0) / 3)
    assert overlap(sample, 2) == pytest.approx(0.5)
    assert overlap(sample, 5) is None
    # document 0: frequencies 1/3, 1, 2/3; document 1: four experts of 1/2
    first, second = (1 / 9 + 1 + 4 / 9) / 2, (4 * 0.25) / 2
    assert independent_overlap(sample) == pytest.approx((3 * first + 2 * second) / 5)


def test_reuse_by_rank_by_hand() -> None:
    sample = Sample(
        np.array([[[0, 1, 2]], [[0, 2, 1]], [[2, 0, 3]]], np.uint8), 2, 4, np.array([0, 3]), None
    )
    # rank 1: 0 reused, 0 reused; rank 2: 1 not, 2 reused; rank 3 (not chosen): 2 chosen next, 1 not
    assert reuse_by_rank(sample) == [1.0, 0.5, 0.5]


def test_lru_by_hand() -> None:
    sample = one_layer([[0], [1], [0], [2], [1], [1]], starts=(4,))
    # sizes 1, 2, 4; depths: miss, miss, 1, miss, 2, 0 when the cache stays
    warm = lru_curve(sample, (0.25, 0.5, 1.0), cold=False)
    assert warm == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    cold = lru_curve(sample, (0.25, 0.5, 1.0), cold=True)
    assert cold == pytest.approx([1 / 6, 2 / 6, 2 / 6])
    assert lru_curve(sample, (0.1,), cold=True) == [0.0]


def test_a_copied_layer_is_predicted_and_a_random_one_is_not() -> None:
    rng = np.random.default_rng(0)
    first = rng.random((2000, 16)).argsort(axis=1)[:, :2]
    shifted = (first + 5) % 16
    other = rng.random((2000, 16)).argsort(axis=1)[:, :2]
    ranked = np.stack([first, shifted, other], axis=1).astype(np.uint8)
    sample = Sample(ranked, 2, 16, np.arange(0, 2001, 100), None)
    recalls, popular = predictability(sample, (1, 2))
    assert recalls[0] == pytest.approx((1.0 + 2 / 16) / 2, abs=0.05)
    assert recalls[1] == pytest.approx(2 / 16, abs=0.05)
    assert popular == pytest.approx(2 / 16, abs=0.05)


def test_batches_of_uniform_tokens() -> None:
    rng = np.random.default_rng(0)
    ranked = rng.random((4000, 3, 16)).argsort(axis=2)[..., :2].astype(np.uint8)
    sample = Sample(ranked, 2, 16, np.array([0, 4000]), None)
    assert active_fraction(sample, 8) == pytest.approx(1 - (14 / 16) ** 8, abs=0.01)


def test_temperatures_by_hand() -> None:
    # every token takes expert 0, expert 1 or 2 in turn, expert 3 never: mean load is B / 2
    sample = one_layer([[0, 1 + t % 2] for t in range(64)])
    found = temperatures(sample, 64)
    assert found["hot"] == (0.25, 0.5)
    assert found["warm"] == (0.5, 0.5)
    assert found["cold"] == (0.25, 0.0)


def test_every_statistic_is_a_number_in_a_group() -> None:
    calls: list[int] = []
    trace = example_trace([30] * 8, ranks=4, counts=True, confidence=True)
    statistics = describe(trace, advance=lambda: calls.append(1))
    assert len(calls) == PARTS
    assert {group_of(name) for name in statistics} == set(GROUPS)
    assert all(np.isfinite(v) for v in statistics.values())
    assert totals(trace) == {
        "tokens": 240,
        "documents": 8,
        "prefill_tokens": 0,
        "decode_tokens": 240,
    }


def test_smallest_traces_have_statistics_too() -> None:
    assert describe(example_trace([1], layers=1, experts=1, top_k=1))["active_8"] == 1.0
    with pytest.raises(BadFile, match="no tokens"):
        collect(MemoryTrace(example_header(), []))


def test_a_trace_without_them_has_no_statistics_of_counts_or_confidence() -> None:
    names = describe(example_trace([30] * 8))
    assert {group_of(name) for name in names} == set(GROUPS) - {"experts_per_token", "confidence"}


def ragged_and_narrow(**changes: int) -> tuple[MemoryTrace, MemoryTrace]:
    """The same routing: of a model with top-4 whose tokens use two, and of one with top-2."""
    wide = example_trace([40] * 6, ranks=5, top_k=4, experts=9, counts=True, **changes)
    (block,) = wide.blocks()
    block = replace(block, counts=np.full(len(block), 2, np.uint16))
    assert block.weights is not None
    thin = replace(block, counts=None, weights=block.weights[..., :2])
    header = replace(wide.header, top_k=2, has_counts=False)
    return MemoryTrace(wide.header, [block]), MemoryTrace(header, [thin])


def test_statistics_of_used_experts_are_those_of_a_narrower_model() -> None:
    ragged, narrow = (describe(trace) for trace in ragged_and_narrow())
    assert ragged.pop("experts_per_token") == 2.0
    for name in [name for name in ragged if name.startswith("predict_")]:
        del ragged[name], narrow[name]  # as many guesses as the model has experts per token
    assert ragged == pytest.approx(narrow, rel=1e-12)


def test_predictions_of_used_experts_by_hand() -> None:
    """Layer 1 repeats the expert that is used; the unused ones are noise."""
    rng = np.random.default_rng(0)
    used = np.arange(60) % 4
    rows = [[[e, *rng.permutation([x for x in range(4) if x != e])]] * 2 for e in used]
    ranked = np.array(rows, dtype=np.uint8)
    starts = np.arange(0, 61, 10)
    sample = Sample(ranked, 2, 4, starts, None, counts=np.ones(60, np.int64))
    (near,), popular = predictability(sample, (1,))
    assert near == 1.0
    assert popular == pytest.approx(0.5, abs=0.1)


def test_tokens_with_different_counts_by_hand() -> None:
    """{0, 1}, {1}, {1, 2}, {3}: of 1 + 2 + 1 used experts one, one and none were used before."""
    sample = replace(one_layer([[0, 1], [1, 0], [1, 2], [3, 1]]), counts=np.array([2, 1, 2, 1]))
    assert loads(sample).tolist() == [[1, 3, 1, 1]]
    assert overlap(sample) == pytest.approx(2 / 4)
    assert sample.experts_per_token == 1.5
    assert lru_curve(sample, (0.25, 1.0), cold=True) == pytest.approx([2 / 6, 2 / 6])


def test_confidence_by_hand() -> None:
    trace = example_trace([4], confidence=True)
    (block,) = trace.blocks()
    nan = np.nan
    columns = {
        "top": np.array([nan, 0.5, 0.9, 0.7], np.float32),
        "margin": np.array([nan, 0.25, 0.875, nan], np.float32),
        "entropy": np.array([nan] * 4, np.float32),
    }
    found = describe(MemoryTrace(trace.header, [replace(block, **columns)]))  # type: ignore[arg-type]
    assert found["confidence_top"] == pytest.approx(0.7)
    assert found["confidence_above_70"] == pytest.approx(1 / 3)
    assert found["confidence_margin"] == pytest.approx(0.5625)
    assert "confidence_entropy" not in found
