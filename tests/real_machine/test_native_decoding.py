"""Does the engine decode by native steps, and report what it reports layer by layer?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import stock
from moesaic.core.report import Timeline
from moesaic.core.routing import LayerRouting
from moesaic.engine.assemble import load_store, on_store
from moesaic.engine.dense_weights import dense_packer
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.kernels.instruction_sets import REFERENCE, available
from moesaic.machines.accelerators import NONE
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.open_model import load_decoder, open_model
from moesaic.policies.policy_set import with_options

pytestmark = pytest.mark.skipif(available() == (REFERENCE,), reason="no native kernels here")
PROMPT = [3, 1, 4, 1, 5]


@contextmanager
def running(
    family: str = "qwen3-moe", dtype: str = "bf16", native: bool = True, **options: object
) -> Iterator[Runner]:
    settings = with_options(EngineSettings(threads=2), options)
    model = open_model(stock.saved(family).folder)
    decoder = load_decoder(model, dtype, dense=dense_packer(settings, dtype))
    store = load_store(decoder, model.experts, dtype)
    timeline = Timeline()
    runner = on_store(decoder, store, settings, Capacity(0, 3, 128), timeline=timeline, scores=True)
    assert runner.machine.capabilities is NONE
    if not native:
        runner.machine.use_only_layerwise("asked for")
    try:
        yield runner
    finally:
        runner.close()


def test_the_same_text_and_reports_as_layer_by_layer() -> None:
    said = []
    for native in (True, False):
        with running(native=native) as runner:
            assert (runner.machine.why_layerwise is None) == native
            logits = runner.step(ForwardPass([Piece(0, PROMPT)]))
            seen, active = [logits], []
            for token in (7, 2, 9, 4):
                seen.append(runner.step(ForwardPass([Piece(0, [token])])))
                report, times = runner.report, runner.machine.times
                assert report is not None
                active.append([layer.active for layer in report.layers])
                assert [layer.layer for layer in report.layers] == [0, 1, 2]
                starts = [layer.start_ns for layer in report.layers]
                assert report.start_ns < starts[0] < starts[1] < starts[2] < report.end_ns
                assert times.step_ns >= times.network_ns + times.experts_ns
                assert 0 < times.router_ns < times.network_ns
            spans = [span for span in runner.machine.timeline.spans if span.kind == "expert"]
            assert len(spans) == 5 * 3
            assert all(span.tokens == 4 for span in spans[3:]), "a token uses four experts"
            said.append((torch.cat(seen).float(), active))
    (ours, counted), (expected, counted_too) = said
    assert counted == counted_too
    errors = (ours - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(errors.median()) < 0.03


def test_a_listener_receives_every_routing() -> None:
    seen: list[LayerRouting] = []
    with running() as runner:
        runner.step(ForwardPass([Piece(0, PROMPT)], listener=seen.append))
        assert [routing.layer for routing in seen] == [0, 1, 2]
        del seen[:]
        runner.step(ForwardPass([Piece(0, [7])], listener=seen.append))
    assert [routing.layer for routing in seen] == [0, 1, 2]
    for routing in seen:
        assert routing.step == 1
        assert routing.experts.shape == routing.weights.shape == (1, 4)
        ranks = routing.ranked.shape[1]
        assert ranks > 4, "the next best are recorded, too"
        assert np.array_equal(routing.ranked[:, :4], routing.experts)
        assert (np.diff(routing.scores[0, :4]) <= 0).all()


def test_fewer_experts_by_a_gate_run_natively() -> None:
    with running(gate="little") as runner:
        runner.step(ForwardPass([Piece(0, PROMPT)]))
        runner.step(ForwardPass([Piece(0, [7])]))
        assert runner.report is not None
        assert [layer.active for layer in runner.report.layers] == [2, 2, 2]


def test_a_replayed_routing_is_computed() -> None:
    chosen = np.array([[1, 0, 3, 2]])

    def replay(layer: int) -> LayerRouting:
        weights = np.full((1, 4), 0.25, dtype=np.float32)
        return LayerRouting(layer, chosen, weights, chosen, weights)

    logits = []
    for native in (True, False):
        with running(native=native) as runner:
            logits.append(runner.step(ForwardPass([Piece(0, [5])], replay=replay)).float())
            spans = [span for span in runner.machine.timeline.spans if span.kind == "expert"]
            assert [sorted(span.experts) for span in spans] == [[0, 1, 2, 3]] * 3
    assert float((logits[0] - logits[1]).norm() / logits[1].norm()) < 0.05


def test_a_failing_step_leaves_the_sequence_as_it_was() -> None:
    with running() as runner:
        runner.step(ForwardPass([Piece(0, PROMPT)]))
        with pytest.raises(ValueError, match="no such token"):
            runner.step(ForwardPass([Piece(0, [97])]))
        assert runner.cache.length(0) == len(PROMPT)
        after = runner.step(ForwardPass([Piece(0, [7])]))
    with running() as runner:
        runner.step(ForwardPass([Piece(0, PROMPT)]))
        assert torch.equal(runner.step(ForwardPass([Piece(0, [7])])), after)


def test_what_cannot_run_natively_says_why() -> None:
    with running(dtype="fp32") as runner:
        assert runner.machine.why_layerwise == "experts have no native kernel here"
        runner.step(ForwardPass([Piece(0, [7])]))
    with running(kernel=REFERENCE) as runner:
        assert runner.machine.why_layerwise == "dense weights are not packed"
