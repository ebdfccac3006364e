"""Does all that a brain is given arrive where it counts: routing and scores in the cache, busy
lanes and moves under way in the schedule?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brain_parts import numbers_of

from made_up import (
    exact_belief,
    make_brain,
    random_steps,
    routing_of,
    small_machine,
    small_model,
    stated_physics,
    view_of,
)
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.offloading import CPU, GPU, IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId, LayerRouting, cut
from moesaic.core.view import Flight, offloading_view
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.cache import caches
from moesaic.policies.future import Future
from more_devices import with_four_dimms

MODEL = small_model(layers=3, experts=6, top_k=2)
# A GPU expert takes 10, a CPU expert 50 and 7 more for the first, a transfer 100.
BELIEF = exact_belief(
    stated_physics(lambda t: 10, lambda t: 50, first=7, transfer=100, model=MODEL)
)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("cache", ["lru", "lfu", "mrs", "two-speed", "learned-speed"])
def test_the_cache_in_a_brain_sees_what_a_cache_alone_sees(
    cache: str, tokens: int, ragged: bool
) -> None:
    """Experts, ranks beyond top-k and scores, to the bit."""
    brain = make_brain(MODEL, BELIEF, slots=6, cache=cache)
    alone = caches.create(cache, 3, 6, 2)
    rng = np.random.default_rng(4)
    for step in random_steps(8, 5, MODEL, tokens, ranks=5):
        for given in step.routings:
            counts = rng.integers(1, 3, tokens)
            routing = cut(given, counts) if ragged else given
            brain.plan(routing, view_of([(0, 0), (1, 1)], 6))
            alone.observe(routing)
    assert alone.values.any()
    assert brain.cache.values.tolist() == alone.values.tolist()


def _plan(schedule: str, remaining_ns: int = 60, wanted: tuple[int, ...] = (0, 2, 4)) -> LayerPlan:
    """Layer 1 wants 0 (there), 2 (under way) and 4 (missing). Lanes are busy for 30 (GPU), 20
    (CPU) and 160 (link, with an expert of layer 0 behind); deciding takes 5 of that."""
    resident = np.zeros((3, 6), dtype=np.uint8)
    resident[1, 0] = 1
    flights = (Flight(0, 3, 160), Flight(1, 2, remaining_ns))
    view = offloading_view(resident, 18, flights, gpu_busy_ns=30, cpu_busy_ns=20, pcie_busy_ns=160)
    brain = make_brain(MODEL, replace(BELIEF, decision_ns=5), slots=18, schedule=schedule)
    return brain.decide(routing_of(1, [[expert] for expert in wanted]), view)


def test_the_gpus_queue_begins_when_gpu_and_link_are_free() -> None:
    """0 runs from 25 to 35, 2 from 55 to 65; the link is free at 155 and brings 4 at 255."""
    plan = _plan("gpu-only")
    assert plan.queues["gpu"] == (0, 2, 4)
    assert plan.believed_ns == 265


def test_the_layer_waits_for_the_move_of_its_own_expert() -> None:
    """2 is the second of two moves under way, and arrives 55 after the decision."""
    assert _plan("gpu-only", wanted=(0, 2)).believed_ns == 65


def test_what_arrives_while_the_brain_decides_is_there_at_once() -> None:
    """The move of expert 2 ends 2 before the decision does: the GPU is the one to wait for."""
    plan = _plan("gpu-only", remaining_ns=3)
    assert plan.queues["gpu"] == (0, 2, 4)
    assert plan.believed_ns == 265


def test_the_cpus_queue_begins_when_the_cpu_is_free() -> None:
    """2 is not there yet, so 2 and 4 run on the CPU: from 15 on, 7 for the first, 50 each."""
    plan = _plan("static-experts")
    assert plan.queues["cpu"] == (4, 2)
    assert plan.believed_ns == 122


@pytest.mark.parametrize(("remaining_ns", "ends_ns"), [(3, 11), (5, 11), (6, 11), (7, 12)])
def test_an_expert_under_way_is_never_taken_for_one_that_is_there(
    remaining_ns: int, ends_ns: int
) -> None:
    """Whatever a decision of 5 leaves of its way, it counts as at least 1: a schedule may treat
    what is under way differently from what is there."""
    brain = make_brain(MODEL, replace(BELIEF, decision_ns=5), slots=18, schedule="gpu-only")
    view = view_of([], 18, flight=Flight(0, 2, remaining_ns))
    assert brain.decide(routing_of(0, [[2]]), view).believed_ns == ends_ns


@pytest.mark.parametrize(
    ("schedule", "resident", "ends_ns"),
    [("gpu-only", [(0, 2)], 10), ("static-experts", [], 57), ("gpu-only", [], 110)],
    ids=["gpu", "cpu", "link"],
)
def test_lanes_that_are_free_before_the_decision_cost_nothing(
    schedule: str, resident: list[tuple[int, int]], ends_ns: int
) -> None:
    brain = make_brain(MODEL, replace(BELIEF, decision_ns=5), slots=18, schedule=schedule)
    assert brain.decide(routing_of(0, [[2]]), view_of(resident, 18)).believed_ns == ends_ns


# The brain's less travelled paths: no slots, oracles, more tokens than it knows costs of.

PER_TOKEN = exact_belief(stated_physics(lambda t: 10 * t, lambda t: 50 * t, transfer=20))


def test_without_slots_everything_runs_on_the_cpu_and_nothing_is_decided() -> None:
    """One token's experts as they are ranked; of several tokens each expert once."""
    brain = make_brain(MODEL, PER_TOKEN, slots=0)
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
    brain = make_brain(MODEL, PER_TOKEN, slots=6)
    known = PER_TOKEN.tables.shape[1]
    brain.decide(routing_of(0, [[0, 1]] * (known + 3)), view_of([(0, 0)], 6))
    assert brain.belief.tables.shape[1] > known + 3
    assert (brain.belief.tables[:, :known] == PER_TOKEN.tables).all()
    tokens = brain.belief.tables.shape[1]
    assert (brain.state.costs.tables[:, :tokens] == brain.belief.tables).all()
    few = make_brain(MODEL, PER_TOKEN, slots=6)
    few.decide(routing_of(0, [[0, 1]] * (known - 1)), view_of([(0, 0)], 6))
    assert few.belief is PER_TOKEN, "nothing more was needed"


def test_a_cache_that_knows_the_future_is_asked_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    future = Future(np.ones((2, 3, 6), dtype=np.uint32))
    brain = make_brain(MODEL, PER_TOKEN, slots=6, cache="belady", future=future)
    seen: list[LayerRouting] = []
    monkeypatch.setattr(brain.cache, "observe", seen.append)
    routing = routing_of(0, [[0, 1]])
    brain.decide(routing, view_of([(0, 0)], 6))
    assert seen == [routing]


def test_a_gate_that_runs_tokens_again_does_not_make_a_body_forecast() -> None:
    """`none` looks ahead only for what the rejected pass wanted."""
    brain = make_brain(MODEL, PER_TOKEN, slots=6, prefetch="none", gate="big-little")
    assert brain.prefetch.lookahead > 0
    brain.decide(routing_of(0, [[0, 1]]), view_of([(0, 0), (0, 1)], 6))
    assert brain.wants_forecasts() == 0
    assert brain.state.ahead.max_background > 0, "there would be time for it"


@pytest.mark.parametrize("place", ["dram", "dimm2"])
def test_an_expert_is_moved_from_where_it_lies(place: str) -> None:
    machine = SimMachine(Physics(with_four_dimms(), MODEL), 6)
    placement = machine.topology.placement_index.get(f"whole@{place}", IN_DRAM)
    machine.memory.place([ExpertId(0, 3), ExpertId(0, 5)], placement)
    brain = make_brain(MODEL, PER_TOKEN, slots=6, schedule="gpu-only")
    plan = brain.decide(routing_of(0, [[3, 5]]), machine.view(0))
    assert [(move.expert, move.source) for move in plan.transfers] == [
        (3, placement),
        (5, placement),
    ]
    assert {move.destination for move in plan.transfers} == {IN_VRAM}
    assert plan.queues[GPU] == (3, 5)


def test_the_machine_that_is_seen_says_whether_there_are_slots() -> None:
    """One brain, two machines: what was met last counts."""
    brain = make_brain(MODEL, PER_TOKEN, slots=6)
    with_slots = SimMachine(Physics(small_machine(), MODEL), 6).view(0)
    routing = routing_of(0, [[0, 1]])
    assert brain.decide(routing, view_of([], slots=0)).queues == {CPU: (0, 1)}
    brain.decide(routing, with_slots)
    assert brain.state.decision.active == 2
