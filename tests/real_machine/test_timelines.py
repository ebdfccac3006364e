"""Does a real run's timeline show what a machine may do: one thing per lane at a time, no expert
before its weights, every expert once, and copies in parallel with the arithmetic?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from time import sleep
from typing import Any

import pytest
import torch

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import ENGINE, Span, Timeline
from moesaic.engine.runner import Runner
from moesaic.kernels.base import LayerExecutor
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.experts.feed_forward import GatedMlp, MoeBlock
from random_plans import RandomBrain
from real_runs import PROMPT, loaded, running, settings, truth

STEPS = 6
Call = tuple[str, tuple[int, ...] | None]  # device, and the experts of a joint call


def experts(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.kind == "expert"]


def play(runner: Runner, timeline: Timeline, name: str) -> list[list[Span]]:
    """The spans of a prompt and some tokens, step by step."""
    found = []
    for step in range(STEPS):
        before = len(timeline.spans)
        tokens = truth(name).text[step - 1 : step] if step else PROMPT
        runner.step(ForwardPass([Piece(0, tokens)]))
        found.append(timeline.spans[before:])
    return found


@pytest.mark.parametrize("name", ["glm-4.5", "olmoe"])
def test_lanes_do_one_thing_at_a_time_and_every_expert_once(name: str) -> None:
    model, timeline = loaded(name), Timeline()
    slots = model.slots(0.3)
    brain = RandomBrain(model.spec, slots)
    with running(model, slots=slots, brain=brain, timeline=timeline) as runner:
        steps = play(runner, timeline, name)
    for spans in steps:
        computed = Counter((span.layer, e) for span in experts(spans) for e in span.computed)
        assert set(computed.values()) == {1}
    copies = [span for span in timeline.spans if span.lane == PCIE]
    assert {span.tokens for span in copies} == {0}
    assert len({span.expert for span in copies}) > 1
    lanes = {CPU: experts(timeline.spans), GPU: experts(timeline.spans), PCIE: copies}
    for lane, spans in lanes.items():
        mine = sorted(span[2:4] for span in spans if span.lane == lane)
        assert len(mine) > STEPS
        assert all(start < end for start, end in mine)
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(mine)), lane


def test_no_expert_is_computed_before_its_weights_are_there_and_copies_overlap() -> None:
    """Everything has to be brought and nothing is kept, so every expert follows its own copy. The
    next one is brought meanwhile: at 2 ms per copy, at least once in all the run."""
    model, timeline = loaded("olmoe"), Timeline()
    how = settings("gpu-only", "pinned", "none", link_latency_us=2000.0, fill="empty")
    with running(model, how, slots=1, timeline=timeline) as runner:
        steps = play(runner, timeline, "olmoe")
    overlaps = 0
    for spans in steps:
        copies = {(s.layer, s.expert): s for s in spans if s.kind == "transfer"}
        computed = experts(spans)
        assert copies.keys() == {(span.layer, span.expert) for span in computed}
        for span in computed:
            assert span.lane == GPU
            assert copies[span.layer, span.expert].end_ns <= span.start_ns
            overlaps += any(
                copy.start_ns < span.end_ns and span.start_ns < copy.end_ns
                for copy in copies.values()
            )
    assert overlaps > 0, "nothing was ever copied while something was computed"


class Noting:
    """An executor that writes down which experts it is called for, together or alone."""

    def __init__(self, executor: LayerExecutor, calls: list[Call], device: str) -> None:
        self._executor, self._calls, self._device = executor, calls, device

    def layer(self, blocks: Any, experts: Sequence[int], *rest: Any) -> int:
        self._calls.append((self._device, tuple(experts)))
        return self._executor.layer(blocks, experts, *rest)

    def expert(self, block: Any, *rest: Any) -> None:
        self._calls.append((self._device, None))
        self._executor.expert(block, *rest)


def noted(accelerator: str, timeline: Timeline) -> tuple[torch.Tensor, list[Call]]:
    """What a run answers, and the calls that compute its experts, device by device."""
    model, calls = loaded("olmoe"), list[Call]()
    how = settings("static-experts", "pinned", "none", accelerator=accelerator)
    slots = model.slots(0.5) if accelerator == "emulated" else 0
    with running(model, how, slots, timeline=timeline) as runner:
        machine: Any = runner.machine.layerwise
        if accelerator == "none":
            machine.executor, machine._token = Noting(machine.executor, calls, CPU), None
        else:
            machine._executors = {d: Noting(c, calls, d) for d, c in machine._executors.items()}
        answered = [runner.step(ForwardPass([Piece(0, PROMPT)]))]
        answered += [
            runner.step(ForwardPass([Piece(0, [token])])) for token in truth("olmoe").text[:3]
        ]
    return torch.cat(answered), sorted(calls, key=lambda call: call[0])


@pytest.mark.parametrize("accelerator", ["none", "emulated"])
def test_recording_does_not_change_how_experts_are_computed(accelerator: str) -> None:
    """The same calls, so the same bits; and the CPU's experts of a layer in one of them."""
    timeline = Timeline()
    answered, calls = noted(accelerator, Timeline(enabled=False))
    again, same = noted(accelerator, timeline)
    assert same == calls
    assert torch.equal(answered, again)
    on_cpu = [span for span in experts(timeline.spans) if span.lane == CPU]
    assert [(CPU, span.experts) for span in on_cpu] == [call for call in calls if call[0] == CPU]
    assert max(len(span.experts) for span in on_cpu) > 1


@pytest.mark.parametrize("accelerator", ["none", "emulated"])
def test_spans_of_a_layer_add_up_to_its_tokens(accelerator: str) -> None:
    timeline = Timeline()
    noted(accelerator, timeline)
    pairs = Counter[int]()
    for span in experts(timeline.spans):
        pairs[span.layer] += span.tokens
        assert (span.expert >= 0) == (len(span.experts) == 1)
    assert set(pairs.values()) == {(len(PROMPT) + 3) * loaded("olmoe").spec.top_k}


@pytest.mark.parametrize(("accelerator", "name"), [("none", "olmoe"), ("emulated", "glm-4.5")])
def test_what_the_engine_does_fills_the_gaps(accelerator: str, name: str) -> None:
    """From the router to the first expert, and from the last one on, without a hole."""
    model, timeline = loaded(name), Timeline(engine=True)
    how = settings("static-experts", "pinned", "none", accelerator=accelerator)
    with running(model, how, model.slots(0.5) if accelerator == "emulated" else 0,
                 timeline=timeline) as runner:  # fmt: skip
        steps = play(runner, timeline, name)
    for spans in steps:
        for layer in range(model.spec.num_moe_layers):
            mine = [span for span in spans if span.layer == layer]
            own = {span.kind: span for span in mine if span.lane == ENGINE}
            ran = experts(mine)
            assert own["hand-over"].start_ns in {s.end_ns for s in mine if s.kind == "dense"}
            assert own["hand-over"].end_ns == own["plan"].start_ns
            assert own["plan"].end_ns == own["start"].start_ns
            assert own["start"].end_ns == min(span.start_ns for span in ran)
            assert own["sum"].start_ns == max(span.end_ns for span in ran)
    shared = [s for s in steps[0] if s.kind == "dense" and s.lane == GPU and s.layer == 0]
    if accelerator == "emulated":
        assert len(shared) == 2, "attention and shared experts"


@pytest.mark.parametrize("engine", [False, True])
def test_nothing_is_noted_without_a_timeline_or_a_lane(engine: bool) -> None:
    timeline = Timeline(enabled=not engine, engine=engine)
    noted("emulated", timeline)
    assert ENGINE not in timeline.lanes


# Is a step's time attributed as it was spent?

SLOW_S = 0.02


@pytest.mark.parametrize("accelerator", ["none", "emulated"])
def test_shared_experts_are_no_overhead(accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run on the accelerator's lane, or as part of the network where there is none."""
    shared = MoeBlock._shared

    def slow(block: MoeBlock, network: GatedMlp, hidden: torch.Tensor) -> torch.Tensor:
        sleep(SLOW_S)
        return shared(block, network, hidden)

    monkeypatch.setattr(MoeBlock, "_shared", slow)
    model = loaded("deepseek-v2")
    how = settings("static-experts", "pinned", "none", accelerator=accelerator)
    slots = model.slots(0.5) if accelerator == "emulated" else 0
    with running(model, how, slots) as runner:
        runner.step(ForwardPass([Piece(0, [1])]))
        costs, layers = runner.machine.times, len(runner.report.layers) if runner.report else 0
    computing = costs.experts_ns if accelerator == "emulated" else costs.network_ns
    assert layers > 0
    assert computing >= layers * SLOW_S * 1e9
    assert costs.network_ns + costs.experts_ns + costs.overhead_ns == costs.step_ns
    assert costs.overhead_ns >= 0
