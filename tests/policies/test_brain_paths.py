"""The brain's less travelled paths: no slots, oracles, more tokens than it knows costs of."""

from __future__ import annotations

import numpy as np
import pytest
from brain_parts import numbers_of

from made_up import (
    exact_belief,
    make_brain,
    routing_of,
    small_machine,
    small_model,
    stated_physics,
    view_of,
)
from moesaic.core.offloading import CPU, GPU, IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId, LayerRouting
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.future import Future
from more_devices import with_four_dimms

MODEL = small_model(layers=3, experts=6, top_k=2)
BELIEF = exact_belief(stated_physics(lambda t: 10 * t, lambda t: 50 * t, transfer=20))


def test_without_slots_everything_runs_on_the_cpu_and_nothing_is_decided() -> None:
    """One token's experts as they are ranked; of several tokens each expert once."""
    brain = make_brain(MODEL, BELIEF, slots=0)
    before = numbers_of(brain.state)
    nothing = view_of([], slots=0)
    assert brain.decide(routing_of(0, [[4, 1]]), nothing).queues == {CPU: (4, 1)}
    plan = brain.decide(routing_of(1, [[4, 1], [1, 3]]), nothing)
    assert plan.queues == {CPU: (1, 3, 4)}
    assert (plan.layer, plan.transfers) == (1, ())
    assert brain.look_ahead() == ()
    assert brain.wants_forecasts() == 0
    assert numbers_of(brain.state) == before


def test_costs_are_known_of_as_many_tokens_as_a_step_brings() -> None:
    brain = make_brain(MODEL, BELIEF, slots=6)
    known = BELIEF.tables.shape[1]
    brain.decide(routing_of(0, [[0, 1]] * (known + 3)), view_of([(0, 0)], 6))
    assert brain.belief.tables.shape[1] > known + 3
    assert (brain.belief.tables[:, :known] == BELIEF.tables).all()
    tokens = brain.belief.tables.shape[1]
    assert (brain.state.costs.tables[:, :tokens] == brain.belief.tables).all()
    few = make_brain(MODEL, BELIEF, slots=6)
    few.decide(routing_of(0, [[0, 1]] * (known - 1)), view_of([(0, 0)], 6))
    assert few.belief is BELIEF, "nothing more was needed"


def test_a_cache_that_knows_the_future_is_asked_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    future = Future(np.ones((2, 3, 6), dtype=np.uint32))
    brain = make_brain(MODEL, BELIEF, slots=6, cache="belady", future=future)
    seen: list[LayerRouting] = []
    monkeypatch.setattr(brain.cache, "observe", seen.append)
    routing = routing_of(0, [[0, 1]])
    brain.decide(routing, view_of([(0, 0)], 6))
    assert seen == [routing]


def test_a_gate_that_runs_tokens_again_does_not_make_a_body_forecast() -> None:
    """`none` looks ahead only for what the rejected pass wanted."""
    brain = make_brain(MODEL, BELIEF, slots=6, prefetch="none", gate="big-little")
    assert brain.prefetch.lookahead > 0
    brain.decide(routing_of(0, [[0, 1]]), view_of([(0, 0), (0, 1)], 6))
    assert brain.wants_forecasts() == 0
    assert brain.state.ahead.max_background > 0, "there would be time for it"


@pytest.mark.parametrize("place", ["dram", "dimm2"])
def test_an_expert_is_moved_from_where_it_lies(place: str) -> None:
    machine = SimMachine(Physics(with_four_dimms(), MODEL), 6)
    placement = machine.topology.placement_index.get(f"whole@{place}", IN_DRAM)
    machine.memory.place([ExpertId(0, 3), ExpertId(0, 5)], placement)
    brain = make_brain(MODEL, BELIEF, slots=6, schedule="gpu-only")
    plan = brain.decide(routing_of(0, [[3, 5]]), machine.view(0))
    assert [(move.expert, move.source) for move in plan.transfers] == [
        (3, placement),
        (5, placement),
    ]
    assert {move.destination for move in plan.transfers} == {IN_VRAM}
    assert plan.queues[GPU] == (3, 5)


def test_the_machine_that_is_seen_says_whether_there_are_slots() -> None:
    """One brain, two machines: what was met last counts."""
    brain = make_brain(MODEL, BELIEF, slots=6)
    with_slots = SimMachine(Physics(small_machine(), MODEL), 6).view(0)
    routing = routing_of(0, [[0, 1]])
    assert brain.decide(routing, view_of([], slots=0)).queues == {CPU: (0, 1)}
    brain.decide(routing, with_slots)
    assert brain.state.decision.active == 2
