"""Does a real run's timeline show what a machine may do: one thing per lane at a time, no expert
before its weights, every expert once, and copies beside the arithmetic?"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import Span, Timeline
from moesaic.engine.runner import Feed, Runner
from random_plans import RandomBrain
from real_runs import PROMPT, loaded, running, settings, truth

STEPS = 6


def experts(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.kind == "expert"]


def play(runner: Runner, timeline: Timeline, name: str) -> list[list[Span]]:
    """The spans of a prompt and some tokens, step by step."""
    found = []
    for step in range(STEPS):
        before = len(timeline.spans)
        tokens = truth(name).text[step - 1 : step] if step else PROMPT
        runner.step([Feed(0, tokens)])
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
        computed = Counter((span.layer, span.expert) for span in experts(spans))
        assert set(computed.values()) == {1}
    lanes = {CPU: experts(timeline.spans), GPU: experts(timeline.spans), PCIE: timeline.spans}
    for lane, spans in lanes.items():
        mine = sorted(span[2:4] for span in spans if span.lane == lane)
        assert len(mine) > STEPS
        assert all(start < end for start, end in mine)
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(mine)), lane


def test_no_expert_is_computed_before_its_weights_are_there_and_copies_run_beside() -> None:
    """Everything has to be brought and nothing is kept, so every expert follows its own copy. The
    next one is brought meanwhile: at 2 ms per copy, at least once in all the run."""
    model, timeline = loaded("olmoe"), Timeline()
    how = settings("gpu-only", "pinned", "none", link_latency_us=2000.0, fill="empty")
    with running(model, how, slots=1, timeline=timeline) as runner:
        steps = play(runner, timeline, "olmoe")
    beside = 0
    for spans in steps:
        copies = {(s.layer, s.expert): s for s in spans if s.kind == "transfer"}
        computed = experts(spans)
        assert copies.keys() == {(span.layer, span.expert) for span in computed}
        for span in computed:
            assert span.lane == GPU
            assert copies[span.layer, span.expert].end_ns <= span.start_ns
            beside += any(
                copy.start_ns < span.end_ns and span.start_ns < copy.end_ns
                for copy in copies.values()
            )
    assert beside > 0, "nothing was ever copied while something was computed"
