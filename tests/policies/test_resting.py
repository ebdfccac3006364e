"""Does the brain stop looking ahead where that finds too little, and does it try again?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.report import LayerReport
from moesaic.core.routing import UNUSED, Forecast
from moesaic.policies.brain import Brain
from moesaic.policies.brain.lookahead import MOST_STEPS, begin_step
from moesaic.policies.schedule import schedules

LAYERS = 2
MODEL = small_model(LAYERS)


def measured_brain(cpu_slowed: int = 100) -> Brain:
    """Of a machine on which copies and the CPU slow each other down."""
    physics = stated_physics(lambda t: 1000, lambda t: 50_000 * t, transfer=10_000, model=MODEL)
    belief = replace(exact_belief(physics), cpu_slowed=cpu_slowed)
    return make_brain(MODEL, belief, 4, "best-split", "lru", "impact")


def steps_with(brain: Brain, prefetched: int, count: int) -> list[bool]:
    """Which steps look ahead, if each of them that does prefetches so many experts."""
    s, found = brain.state, []
    for _ in range(count):
        s.inputs.layer = 0
        begin_step(s.setup, s.costs, s.inputs, s.ahead)
        found.append(not s.ahead.resting)
        s.ahead.prefetched = prefetched if found[-1] else 0
        for layer in range(1, LAYERS):
            s.inputs.layer = layer
            begin_step(s.setup, s.costs, s.inputs, s.ahead)
    return found


def test_a_step_without_prefetches_is_followed_by_a_rest() -> None:
    looked = steps_with(measured_brain(), 0, 40)
    rests = [len(rest) for rest in "".join("01"[each] for each in looked).split("1")[1:-1]]
    assert rests[:3] == [1, 3, MOST_STEPS]
    assert set(rests[2:]) == {MOST_STEPS}


def test_prefetches_that_pay_end_it() -> None:
    brain = measured_brain()
    assert not all(steps_with(brain, 0, 20))
    later = steps_with(brain, 1000, 40)
    assert all(later[MOST_STEPS + 1 :])


@pytest.mark.parametrize(("cpu_slowed", "rests"), [(0, False), (100, True)])
def test_only_where_costs_were_measured_together(cpu_slowed: int, rests: bool) -> None:
    """A simulated paper's machine is not charged for what it does not know."""
    assert all(steps_with(measured_brain(cpu_slowed), 0, 10)) is not rests


def test_another_schedule_knows_nothing_of_a_rest() -> None:
    """Prompts may have one that does not count contention."""
    brain = measured_brain()
    best = brain.schedule
    assert not all(steps_with(brain, 0, 4))
    brain.schedule = schedules.load("hybrid")()
    assert all(steps_with(brain, 0, 4))
    brain.schedule = best
    assert steps_with(brain, 0, 2) == [True, False]


def test_what_is_not_known_stays_so_in_a_rest() -> None:
    """Of two tokens one runs again: nothing is made up of the other."""
    brain = measured_brain()
    s = brain.state
    brain.decide(routing_of(0, [[0, 1], [2, 3]]), view_of([(0, 0)], 4, LAYERS))
    s.ahead.resting, s.ahead.looked = 2, 0
    ranked = np.array([[4, 5], [UNUSED, UNUSED]])
    known = Forecast(1, ranked, np.zeros((2, 2), dtype=np.float32))
    assert brain.wants_forecasts() == 0
    moves = brain.look_ahead((known,))
    assert moves
    assert {move.expert for move in moves if move.layer == 1} <= {4, 5}
    assert brain.state.forecasts.ids[0].ravel()[:4].tolist() == [4, 5, UNUSED, UNUSED]


def test_a_rest_wants_no_forecasts_and_uses_those_that_are_there() -> None:
    """Of tokens that run again, say: they cost nothing."""
    brain = measured_brain()
    s = brain.state
    routing, view = routing_of(0, [[0, 1]]), view_of([(0, 0), (0, 1)], 4, LAYERS)
    for resting in (False, True):
        brain.decide(routing, view)
        s.ahead.resting, s.ahead.looked = 2 * resting, 0
        wanted = brain.wants_forecasts()
        room = int(s.ahead.max_background)
        assert wanted == (0 if resting else brain.forecasts_used)
        assert room > 0
        known = Forecast(1, np.array([[4, 5]]), np.array([[0.5, 0.5]], dtype=np.float32))
        s.ahead.prefetched = 0
        moves = brain.look_ahead((known,))
        assert moves, "there is time, and they are not there"
        assert {move.expert for move in moves} <= {4, 5}
        assert s.ahead.prefetched == len(moves)
        brain.learn(routing, LayerReport(0, 0, 1000, 2, 0, 0, 0))
