"""Does planning count that the CPU is slower while the link copies?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from brain_parts import state_of
from drawn_work import work_of, works
from hypothesis import given
from hypothesis import strategies as st

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.report import Timeline
from moesaic.core.units import slowed_by
from moesaic.engine.described_belief import described_belief
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Task
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.resources import WHOLE, PriorityResource
from moesaic.machines.sim.sharing_lane import SharingLane
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.belief import warm_up
from moesaic.policies.brain import contention
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import Assignment, Work
from moesaic.policies.timelines import (
    ABSENT,
    ALONE,
    CPU_SLOWED,
    MOVED,
    ON_CPU,
    ON_GPU,
    cpu_finish,
    finish_time,
)


def slowed(work: Work, thousandths: int) -> Work:
    work.lanes[CPU_SLOWED] = thousandths
    return work


def split(work: Work) -> Assignment:
    return schedules.load("best-split")().assign(work)


def test_the_warm_up_measures_the_cpu_beside_copies() -> None:
    """118 GB/s alone, 84 of 134 beside a copy of 50: 405 thousandths longer."""
    machine, model = load_machine("h200-emr16"), load_model("qwen3-30b-a3b")
    measured = warm_up(SimMachine(Physics(machine, model), slots=48), max_tokens=2)
    assert measured.cpu_slowed == pytest.approx(1000 * (118 / 84 - 1), abs=3)
    described = described_belief(machine, model, "bf16", 2)
    assert described.cpu_slowed == pytest.approx(measured.cpu_slowed, abs=1)
    assert measured.off_by({"cpu": 2.0}).cpu_slowed == measured.cpu_slowed


def test_a_machine_that_shares_nothing_is_not_slowed() -> None:
    physics = Physics(load_machine("a6000-xeon5220r"), load_model("qwen3-30b-a3b"))
    assert warm_up(SimMachine(physics, slots=48), max_tokens=1).cpu_slowed == 0


def test_a_measurement_in_which_copies_help_is_noise() -> None:
    assert slowed_by(1000, 1300) == 300
    assert slowed_by(1000, 900) == 0


def test_the_cpu_is_slow_as_long_as_the_link_is_busy() -> None:
    """At half speed until 60, 30 of 100 are done; before the link begins or after, nothing is
    lost."""
    assert cpu_finish(0, 100, 60, 1000) == 130
    assert cpu_finish(0, 100, 500, 1000) == 200, "the link outlasts the work"
    assert cpu_finish(70, 100, 60, 1000) == 170, "the link is idle when the CPU begins"
    assert cpu_finish(0, 100, 60, 0) == 100


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 900))
def test_it_ends_when_the_simulated_lanes_end(work: int, link_end: int, taken: int) -> None:
    """A CPU that needs the whole memory, and a copy that takes so many thousandths of it first."""
    clock = Clock()
    shared = [PriorityResource({"cpu": WHOLE, "pcie": taken}, ["pcie"])]
    cpu, link = (SharingLane(name, clock, Timeline(), shared) for name in ("cpu", "pcie"))
    copy, task = Task("transfer", link_end), Task("expert", work)
    link.submit(copy)
    cpu.submit(task)
    while not task.done:
        clock.step()
    thousandths = round(ALONE * taken / (WHOLE - taken))
    expected = cpu_finish(0, work, link_end, thousandths)
    # the slowdown is rounded to thousandths, which the work beside the copy multiplies
    assert task.end_ns == pytest.approx(expected, abs=2 + link_end / ALONE)


def test_a_move_that_slows_the_cpu_by_more_than_it_saves_is_not_made() -> None:
    """Two missing experts, 100 each on the CPU, 150 to move: believed alone, moving one ends at
    160. Beside the copy the CPU runs at a quarter: 37 of its 100 are done at 150, and it ends at
    213, later than both on the CPU."""
    work = work_of([1, 1], [ABSENT, ABSENT], lambda t: 10, lambda t: 100, transfer=150)
    assert len(split(work).moved) == 1
    kinds = np.array([MOVED, ON_CPU])
    costs = np.array([10, 10]), np.array([100, 100])
    slowed(work, 3000)
    assert finish_time(kinds, work.table[2], *costs, work.lanes, 2) == 213
    aware = split(work)
    assert (aware.moved, len(aware.cpu), aware.believed_ns) == ((), 2, 200)


@given(works(most=6), st.sampled_from([100, 405, 3000]))
def test_the_best_split_of_few_experts_is_the_optimum_beside_copies(work: Work, by: int) -> None:
    slowed(work, by)
    n, (_, loads, ready) = work.n, work.table[:, : work.n]
    gpu, cpu = work.belief.tables[0, loads], work.belief.tables[1, loads]
    ways = [(ON_CPU, MOVED if at == ABSENT else ON_GPU) for at in ready.tolist()]
    every = (
        finish_time(np.array(kinds), ready, gpu, cpu, work.lanes, n) for kinds in product(*ways)
    )
    assert split(work).believed_ns == min(every)


def test_with_one_token_the_optimum_of_each_layer_gives_the_run_of_the_best_split() -> None:
    """All experts cost the same, so the split is each layer's optimum; what both do beyond the
    assignment must be the same, too."""
    asked = Settings(
        load_model("olmoe-1b-7b"), load_machine("h200-emr16"), cache_ratio=0.5, tokens=16,
        warmup=4, expert_dtype="int4",
    )  # fmt: skip
    trace = choose_workload(None, asked).source
    choices = (
        PolicySet.of(schedule=name, cache="learned-speed", prefetch="impact")
        for name in ("best-split", "optimal")
    )
    split, optimum = (simulate(replace(asked, policies=choice), trace) for choice in choices)
    assert optimum.elapsed_s == pytest.approx(split.elapsed_s, rel=1e-3)


def test_the_papers_rule_believes_every_cost_alone() -> None:
    physics = stated_physics(lambda t: 10, lambda t: 100, transfer=150)
    belief = replace(exact_belief(physics), cpu_slowed=3000)
    routing, nothing = routing_of(0, [[0, 1]]), view_of([], slots=3, experts=6)
    moved = {}
    for name in ("hybrid", "best-split", "optimal"):
        brain = make_brain(small_model(), belief, slots=3, schedule=name)
        moved[name] = len(brain.decide(routing, nothing).transfers)
    assert moved == {"hybrid": 1, "best-split": 0, "optimal": 0}


def delays_of(cpu_slowed: int, schedule: str) -> list[int]:
    """One resident expert, one on the CPU for 100; a move takes 150."""
    physics = stated_physics(lambda t: 10, lambda t: 100, transfer=150)
    belief = replace(exact_belief(physics), cpu_slowed=cpu_slowed)
    brain = make_brain(small_model(), belief, slots=3, schedule=schedule)
    brain.decide(routing_of(0, [[0, 1]]), view_of([(0, 0)], slots=3, experts=6))
    brain.look_ahead()
    room = int(brain.state.ahead.max_background)
    return [int(delay) for delay in brain.state.ahead.delays[: room + 1]]


@pytest.mark.parametrize("schedule", ["best-split", "optimal"])
def test_a_background_move_costs_what_it_slows_this_layer_by(schedule: str) -> None:
    """At two thirds of its speed beside the move, the CPU ends at 150 instead of 100."""
    assert delays_of(0, schedule) == [0, 0]
    assert delays_of(500, schedule) == [0, 50]


def test_an_expert_must_be_worth_the_time_that_moving_it_takes_now() -> None:
    """Values .6, .3 and .1 of two experts per token are 1 (at most), .6 and .2 uses in a step. A
    use saves 100, for 3 steps: a cost of 60 is worth .2 uses, a value of .1."""
    state = state_of(1, 3, cost_tokens=2)
    state.costs.tables[1] = [0, 100]
    s, values = state, np.array([0.6, 0.3, 0.1])
    s.setup.top_k, s.inputs.tokens, s.setup.cache_horizon = 2, 1, 3
    records = s.setup, s.costs, s.inputs
    assert contention.worth_less_cost(*records, values, 1, 0) == pytest.approx(0.3)
    assert contention.worth_less_cost(*records, values, 1, 60) == pytest.approx(0.2)
    assert contention.worth_less_cost(*records, values, 0, 0) == pytest.approx(0.5), (
        "used once at most"
    )


@pytest.mark.parametrize("schedule", ["best-split", "optimal"])
@pytest.mark.parametrize(("cpu_slowed", "moved"), [(0, 1), (100, 2)])
def test_of_equal_loads_the_most_valuable_is_moved(
    cpu_slowed: int, moved: int, schedule: str
) -> None:
    """Expert 2 was used before, and ranks behind 1; the CPU takes one of them and the link the
    other."""
    physics = stated_physics(lambda t: 10, lambda t: 100, transfer=80)
    belief = replace(exact_belief(physics), cpu_slowed=cpu_slowed)
    brain = make_brain(small_model(), belief, 3, schedule=schedule, cache="lfu", promote=False)
    nothing = view_of([], slots=3, experts=6)
    brain.decide(routing_of(0, [[2, 3]]), nothing)
    plan = brain.decide(routing_of(0, [[1, 2]]), nothing)
    assert [move.expert for move in plan.transfers] == [moved]
