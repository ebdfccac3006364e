"""Does a layer end when its lanes do? The believed end of any assignment, against lanes worked off
one task after the other, in order of arrival and in the order of the GPU's queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest
from drawn_work import costs, works
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import (
    StatedPhysics,
    exact_belief,
    make_brain,
    random_routing,
    routing_of,
    small_model,
    stated_physics,
)
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU
from moesaic.core.routing import ExpertId, LayerRouting
from moesaic.core.step import Step
from moesaic.machines.sim import SimMachine
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import Work, served_as
from moesaic.policies.timelines import (
    ABSENT,
    CPU_FIRST,
    CPU_FREE,
    GPU_FREE,
    LINK_FREE,
    MOVED,
    ON_CPU,
    ON_GPU,
    TRANSFER,
)


def _arrivals(work: Work, kind: list[int]) -> dict[int, int]:
    """When what the GPU computes is there."""
    link = int(work.lanes[LINK_FREE])
    found = {}
    for i, ready in enumerate(work.table[2, : work.n].tolist()):
        if kind[i] == MOVED:
            link += int(work.lanes[TRANSFER])
            found[i] = link
        elif kind[i] == ON_GPU:
            found[i] = ready
    return found


def _gpu_end(work: Work, order: Iterable[int], arrivals: dict[int, int]) -> int:
    gpu, now = costs(work)[0].tolist(), int(work.lanes[GPU_FREE])
    for i in order:
        now = max(now, arrivals[i]) + gpu[i]
    return now


def _cpu_end(work: Work, kind: list[int]) -> int:
    mine = [cost for cost, how in zip(costs(work)[1].tolist(), kind, strict=True) if how == ON_CPU]
    return sum(mine, int(work.lanes[CPU_FREE] + work.lanes[CPU_FIRST])) if mine else 0


@settings(max_examples=200)
@given(works(most=7), st.data())
def test_a_layer_ends_when_its_last_lane_does(work: Work, data: st.DataObject) -> None:
    kind = [
        data.draw(st.sampled_from([ON_CPU, MOVED if ready == ABSENT else ON_GPU]))
        for ready in work.table[2, : work.n].tolist()
    ]
    found, arrivals = served_as(work, kind), _arrivals(work, kind)
    in_order = sorted(arrivals, key=lambda i: (arrivals[i], i))
    end = max(_gpu_end(work, in_order, arrivals), _cpu_end(work, kind))
    assert found.believed_ns == end
    assert sorted(found.gpu) == sorted(arrivals)
    assert max(_gpu_end(work, found.gpu, arrivals), _cpu_end(work, kind)) == end


# Does a layer take as long as its planner believed, where the belief is exact? The loop closed
# between planner and machine: two accounts of the same lanes, written apart.


class Case(NamedTuple):
    physics: StatedPhysics
    routing: LayerRouting  # of layer 1
    resident: list[ExpertId]
    coming: ExpertId | None  # still under way when layer 1 is planned


@st.composite
def cases(draw: st.DrawFn) -> Case:
    experts = draw(st.integers(2, 12))
    model = small_model(2, experts, draw(st.integers(1, experts)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gpu, cpu = (rng.integers(1, 60, 65).tolist() for _ in range(2))
    transfer = draw(st.integers(2, 120))
    physics = stated_physics(
        gpu=lambda t: int(gpu[t]),
        cpu=lambda t: int(cpu[t]) + 5 * t,
        first=draw(st.integers(0, 40)),
        transfer=transfer,
        attention=draw(st.integers(1, 130)),
        shared=draw(st.sampled_from([0, 33])),
        model=model,
    )
    tokens = draw(st.sampled_from([1, 3, 9]))
    routing = random_routing(rng, 1, tokens, experts, model.top_k, model.top_k)
    present = rng.random(experts) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    resident = [ExpertId(1, int(e)) for e in np.flatnonzero(present)]
    absent = np.flatnonzero(~present)
    coming = None
    if len(absent) and draw(st.booleans()):
        coming = ExpertId(1, int(rng.choice(absent)))
    return Case(physics, routing, resident, coming)


@pytest.mark.parametrize("schedule", list(schedules))
@settings(max_examples=60)
@given(case=cases())
def test_a_layer_takes_as_long_as_believed(schedule: str, case: Case) -> None:
    physics, routing, resident, coming = case
    experts = physics.model.num_experts
    machine = SimMachine(physics, slots=2 * experts)
    machine.memory.place(resident)
    brain = make_brain(physics.model, exact_belief(physics), 2 * experts, schedule, promote=False)
    first = routing_of(0, [[0]] * routing.num_tokens)
    machine.begin(Step.prompt(routing.num_tokens), lambda at: (first, routing)[at])
    machine.route(0)
    background = () if coming is None else (Move(*coming),)
    machine.run(LayerPlan(0, {CPU: (0,)}, (), background))
    machine.route(1)
    plan = brain.plan(routing, machine.view(1))
    report = machine.run(plan)
    shared = physics.shared  # the layer also ends no earlier than the shared experts
    assert report.end_ns - report.start_ns == max(plan.believed_ns, shared)


def test_a_wrong_belief_changes_the_plan_and_not_the_machine() -> None:
    """The CPU is believed to be a hundred times as fast as it is: everything goes there, and
    takes the time that the machine's own costs say."""
    physics = stated_physics(gpu=lambda t: 10, cpu=lambda t: 1000, transfer=20)
    wrong = stated_physics(gpu=lambda t: 10, cpu=lambda t: 1, transfer=20)
    routing = routing_of(0, [[0, 1], [2, 3]])
    took = {}
    for name, believed in (("right", physics), ("wrong", wrong)):
        machine = SimMachine(physics, slots=18)
        machine.begin(Step.decode(2), lambda at: routing)
        machine.route(0)
        brain = make_brain(physics.model, exact_belief(believed), 18)
        plan = brain.plan(routing, machine.view(0))
        report = machine.run(plan)
        took[name] = (len(plan.queues[CPU]), plan.believed_ns, report.end_ns - report.start_ns)
    assert took == {"right": (0, 90, 90), "wrong": (4, 4, 4000)}
