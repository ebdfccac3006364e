"""Does all that a brain is given arrive where it counts: routing and scores in the cache, busy
lanes and moves under way in the schedule?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_up import (
    exact_belief,
    make_brain,
    random_steps,
    routing_of,
    small_model,
    stated_physics,
    view_of,
)
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.routing import cut
from moesaic.core.view import Flight, offloading_view
from moesaic.policies.cache import caches

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
