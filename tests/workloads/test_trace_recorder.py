"""Does a recording hold what the engine said, document by document?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_examples import example_block, example_header

from made_up import routing_of
from moesaic.core.confidence import Confidence
from moesaic.core.errors import EngineFailed
from moesaic.core.routing import Forecast, cut
from moesaic.workloads.block import DECODE, PREFILL, RoutingBlock
from moesaic.workloads.documents import documents
from moesaic.workloads.recorder import Recorder
from moesaic.workloads.source import open_trace


def record_step(
    recorder: Recorder, said: RoutingBlock, numbers: list[int], phase: str | list[str]
) -> None:
    """Tell the recorder what `said` holds, as one step of these documents."""
    recorder.begin_step(numbers, said.positions, phase)
    header = recorder.header
    assert said.weights is not None
    assert said.scores is not None
    assert said.forecast_experts is not None
    assert said.forecast_scores is not None
    for layer in range(header.num_layers):
        predicted = [
            Forecast(
                layer + 1 + d,
                said.forecast_experts[:, layer, d].astype(np.int64),
                said.forecast_scores[:, layer, d].astype(np.float32),
            )
            for d in range(min(header.forecast_depth, header.num_layers - layer - 1))
        ]
        ranked = said.experts[:, layer]
        recorder.layer(
            layer,
            ranked[:, : header.top_k],
            said.weights[:, layer],
            ranked,
            said.scores[:, layer],
            predicted,
        )
    recorder.end_step()


def test_interleaved_documents_are_sorted_out(tmp_path: Path) -> None:
    header = example_header(ranks=4, depth=1)
    prompt_a, prompt_b = example_block(header, [3], 1), example_block(header, [2], 2)
    both = example_block(header, [1, 1], 3)
    both.positions[:] = [3, 2]
    with Recorder(tmp_path / "t.moet", header) as recorder:
        record_step(recorder, prompt_a, [7] * 3, "prefill")
        record_step(recorder, prompt_b, [9] * 2, "prefill")
        record_step(recorder, both, [7, 9], "decode")
        recorder.end_document(9)
    first, second = documents(open_trace(tmp_path / "t.moet"))
    assert first.documents.tolist() == [0, 0, 0]  # document 9, which ended first
    assert second.phases.tolist() == [PREFILL] * 3 + [DECODE]
    assert second.positions.tolist() == [0, 1, 2, 3]
    assert np.array_equal(second.experts[:3], prompt_a.experts)
    assert np.array_equal(first.experts[2], both.experts[1])
    assert first.forecast_experts is not None
    assert both.forecast_experts is not None
    assert np.array_equal(first.forecast_experts[2, :2], both.forecast_experts[1, :2])


def test_a_step_may_read_one_document_and_write_another(tmp_path: Path) -> None:
    header = example_header(ranks=4, depth=1)
    prompt, both = example_block(header, [2], 1), example_block(header, [1, 3], 2)
    both.positions[:] = [2, 0, 1, 2]
    with Recorder(tmp_path / "t.moet", header) as recorder:
        record_step(recorder, prompt, [4, 4], "prefill")
        record_step(recorder, both, [4, 5, 5, 5], ["decode", *["prefill"] * 3])
        recorder.end_document(4)
    first, second = documents(open_trace(tmp_path / "t.moet"))
    assert first.phases.tolist() == [PREFILL, PREFILL, DECODE]
    assert second.phases.tolist() == [PREFILL] * 3
    assert np.array_equal(first.experts[2], both.experts[0])
    assert np.array_equal(second.experts, both.experts[1:])


def test_every_token_needs_a_phase(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.moet", example_header())
    with pytest.raises(AssertionError, match="1 phases for 2 tokens"):
        recorder.begin_step([0, 0], [0, 1], ["prefill"])


def test_an_abandoned_step_leaves_no_tokens(tmp_path: Path) -> None:
    header = example_header(ranks=4, depth=1)
    said = example_block(header, [2], 1)
    with Recorder(tmp_path / "t.moet", header) as recorder:
        recorder.begin_step([0, 1], [0, 0], "decode")
        recorder.abandon_step()
        record_step(recorder, said, [1, 1], "prefill")
    (only,) = documents(open_trace(tmp_path / "t.moet"))
    assert only.positions.tolist() == [0, 1]
    assert np.array_equal(only.experts, said.experts)


def test_a_forgotten_layer_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    def forgetful() -> None:
        with Recorder(tmp_path / "t.moet", example_header()) as recorder:
            recorder.begin_step([0], [0], "decode")
            recorder.layer(0, np.array([[1, 2]]), np.array([[0.5, 0.5]]))
            recorder.end_step()

    with pytest.raises(EngineFailed, match="layers 1, 2"):
        forgetful()
    assert list(tmp_path.iterdir()) == []


def test_only_kept_tokens_are_recorded_with_counts_and_confidence(tmp_path: Path) -> None:
    """Document 3's token is run again: the second pass is the one that counts."""
    header = example_header(ranks=4, counts=True, confidence=True)
    passes = [example_block(header, [1, 1], seed) for seed in (1, 2)]
    used = [np.array([1, 1]), np.array([2, 1])]  # of documents 3 and 5
    sure = [Confidence(*np.full((3, 2), value, np.float32)) for value in (0.25, 0.75)]
    with Recorder(tmp_path / "t.moet", header) as recorder:
        for turn, (said, positions) in enumerate(zip(passes, ([0, 0], [0, 1]), strict=True)):
            recorder.begin_step([3, 5], positions, "decode")
            for layer in range(header.num_layers):
                whole = routing_of(layer, said.experts[:, layer].tolist(), k=2)
                routing = cut(whole, used[turn])
                recorder.layer(
                    layer,
                    routing.experts,
                    routing.weights,
                    routing.ranked,
                    routing.scores,
                    counts=routing.counts,
                )
            recorder.end_step(np.array([turn == 1, True]), sure[turn])
    first, second = documents(open_trace(tmp_path / "t.moet"))
    assert first.positions.tolist() == [0]
    assert np.array_equal(first.experts, passes[1].experts[:1])
    assert first.counts is not None
    assert first.top is not None
    assert (first.counts.tolist(), first.top.tolist()) == ([2], [0.75])
    assert second.positions.tolist() == [0, 1]
    assert second.counts is not None
    assert second.entropy is not None
    assert (second.counts.tolist(), second.entropy.tolist()) == ([1, 1], [0.25, 0.75])
    assert second.weights is not None
    assert not second.weights[:, :, 1].any()
    assert np.array_equal(second.experts[0], passes[0].experts[1]), "the router's ranks stay known"


def test_what_a_source_does_not_know_is_recorded_as_unknown(tmp_path: Path) -> None:
    header = example_header(layers=1, counts=True, confidence=True)
    with Recorder(tmp_path / "t.moet", header) as recorder:
        recorder.begin_step([0], [0], "decode")
        recorder.layer(0, np.array([[1, 2]]), np.array([[0.5, 0.5]]))
        recorder.end_step()
    (only,) = documents(open_trace(tmp_path / "t.moet"))
    assert only.counts is not None
    assert only.margin is not None
    assert only.counts.tolist() == [2]
    assert np.isnan(only.margin).all()


def test_padding_is_not_recorded_as_an_expert(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.moet", example_header(experts=256, counts=True))
    recorder.begin_step([0], [0], "decode")
    with pytest.raises(AssertionError, match="ranked experts must be known"):
        recorder.layer(0, np.array([[1, -1]]), np.array([[0.5, 0]]), counts=np.array([1]))
