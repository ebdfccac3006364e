"""What a finished layer teaches, by hand: averages of times and misses, and when later layers are
therefore believed to start."""

from __future__ import annotations

import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.report import LayerReport
from moesaic.policies.brain import Brain
from moesaic.policies.brain.learn import learn

MODEL = small_model(layers=4, experts=6, top_k=2)


def _brain(prefetch: str = "impact") -> Brain:
    """A GPU expert takes 10, a CPU expert 400 (the first 7 more), a transfer 100."""
    physics = stated_physics(lambda t: 10, lambda t: 400, first=7, transfer=100, model=MODEL)
    belief = exact_belief(physics)
    return make_brain(MODEL, belief, slots=4, schedule="static-experts", prefetch=prefetch)


def _run(brain: Brain, layer: int, start_ns: int, end_ns: int, hits: int = 2) -> None:
    """A layer with the experts 0 and 1, both on the GPU."""
    routing = routing_of(layer, [[0, 1]])
    brain.plan(routing, view_of([(layer, 0), (layer, 1)], 4, 4))
    brain.learn(routing, LayerReport(layer, start_ns, end_ns, 2, hits, 0))


def _times(brain: Brain) -> tuple[int, int]:
    """The average gap between two layers' experts, and of the experts' own time."""
    return int(brain.state.learned.gap_ns), int(brain.state.learned.layer_ns)


def test_times_are_running_averages_with_a_memory_of_eight() -> None:
    """The first time counts as it is; then seven parts of the old, one of the new, rounded down."""
    brain = _brain()
    _run(brain, 0, 1000, 1100)
    assert _times(brain) == (0, 100), "there was no layer before, so no gap"
    _run(brain, 1, 1150, 1350)
    assert _times(brain) == (50, (7 * 100 + 200) // 8)
    _run(brain, 2, 1380, 1480)
    assert _times(brain) == ((7 * 50 + 30) // 8, (7 * 112 + 100) // 8)


def test_the_gap_before_a_steps_first_layer_is_none_between_layers() -> None:
    """Sampling and the head lie in it."""
    brain = _brain()
    _run(brain, 0, 1000, 1100)
    _run(brain, 1, 1150, 1250)
    _run(brain, 0, 9000, 9100)
    assert _times(brain)[0] == 50


@pytest.mark.parametrize(("end_ns", "gap_ns"), [(-1, 0), (0, 40), (1, 39)])
def test_a_gap_needs_a_layer_that_has_ended(end_ns: int, gap_ns: int) -> None:
    """-1 says that none has; a clock may start at 0."""
    brain = _brain()
    _run(brain, 0, 0, 100)
    s = brain.state
    s.inputs.layer, s.learned.last_end_ns, s.learned.gap_ns = 1, end_ns, 0
    s.report.start_ns, s.report.end_ns = 40, 60
    learn(s)
    assert s.learned.gap_ns == gap_ns


def test_the_share_of_missing_experts_is_a_mean_over_32_layers() -> None:
    brain = _brain()
    found = [brain.state.learned.miss_rate]
    for number, hits in enumerate((0, 1, 2)):
        _run(brain, number, 1000, 1100, hits)
        found.append(brain.state.learned.miss_rate)
    first = 1 / 32
    second = first + (1 / 2 - first) / 32
    assert found == [0, first, second, second - second / 32]


def test_later_layers_start_as_they_did_so_far() -> None:
    """Layer 2 hits twice: 20 on the GPU. The next layer's experts start a gap (50) after that,
    every later layer's a gap and a layer (100) after the one before."""
    brain = _brain("impact:lookahead=3")
    _run(brain, 0, 1000, 1100)
    _run(brain, 1, 1150, 1250)
    brain.plan(routing_of(2, [[0, 1]]), view_of([(2, 0), (2, 1)], 4, 4))
    assert brain.state.ahead.starts.tolist() == [70, 220, 370]
    assert brain.state.ahead.link_free_ns == 0
    assert brain.state.ahead.max_background == 1, "a second could only start at 100"


def test_the_link_first_brings_what_the_layer_demands() -> None:
    physics = stated_physics(lambda t: 10, lambda t: 400, transfer=100, model=MODEL)
    brain = make_brain(MODEL, exact_belief(physics), 4, schedule="gpu-only", prefetch="impact")
    brain.plan(routing_of(0, [[0, 1]]), view_of([], 4, 4))
    assert brain.state.ahead.link_free_ns == 200
    assert brain.state.ahead.starts.tolist()[0] == 210
    assert brain.state.ahead.max_background == 1
