"""Can a thread that knows no Python use the brain, and does it decide the same?"""

from __future__ import annotations

import ctypes
from copy import deepcopy
from dataclasses import replace

import pytest
from recording import Moment, recorded_run

from closed_loop import assembled
from made_up import RandomStep, random_steps, small_machine, small_model
from moesaic.core.routing import Forecast
from moesaic.machines.sim.physics import Physics
from moesaic.policies.brain import Brain
from moesaic.policies.brain.decide import fill_routing, fill_view
from moesaic.policies.brain.learn import fill_report
from moesaic.policies.brain.stages import (
    BEGIN_LOOK_AHEAD,
    DECIDE,
    FINISH_LOOK_AHEAD,
    LEARN,
    LOOK_AHEAD,
    address,
)
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.records import PLAN_HEADER, State

MODEL = small_model(layers=4, experts=8, top_k=2)
SLOTS = 12
STEPS = random_steps(5, 8, MODEL)


def on_native_thread(function: int, state: State) -> None:
    """Run a C function of one pointer on a thread that the C library starts; Python waits for it
    outside the interpreter."""
    libc = ctypes.CDLL(None, use_errno=True)
    thread = ctypes.c_ulong()
    pointer, start = ctypes.c_void_p(state.address), ctypes.c_void_p(function)
    assert libc.pthread_create(ctypes.byref(thread), None, start, pointer) == 0
    assert libc.pthread_join(thread, None) == 0


def fill(brain: Brain, moment: Moment) -> State:
    """What a body in native code would write into the state."""
    state, routing, view = brain.state, moment.routing, moment.view
    brain.link_rules()
    state.inputs.num_flights = len(view.in_flight)
    for number, flight in enumerate(view.in_flight):
        brain.state.inputs.flights[number] = flight[:3]
    inputs = (routing.experts, routing.ranked, routing.scores)
    fill_routing(state.inputs, routing.step, routing.layer, *inputs)
    busy = (view.gpu_busy_ns, view.cpu_busy_ns, view.pcie_busy_ns)
    fill_view(state.inputs, view.resident, view.held, view.occupied, *busy)
    return state


@pytest.mark.parametrize("policies", [("hybrid", "mrs", "impact"), ("best-split", "lru", "none")])
def test_a_native_thread_decides_what_python_decided(policies: tuple[str, str, str]) -> None:
    schedule, cache, prefetch = policies
    physics = Physics(small_machine(), MODEL)
    names = PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)
    moments = recorded_run(physics, SLOTS, names, STEPS)
    _, brain = assembled(physics, SLOTS, names, STEPS)
    for moment in deepcopy(moments):
        assert decided_natively(brain, moment) == plan_words(moment)
        state = brain.state
        state.forecasts.count = state.forecasts.from_body = 0
        on_native_thread(address(LOOK_AHEAD), state)
        assert background(brain, moment) == [[t.layer, t.expert] for t in moment.plan.background]
        learn_natively(brain, moment)
    assert any(moment.plan.background for moment in moments) or policies[2] == "none"


@pytest.mark.parametrize("prefetch", ["impact", "next-layer"])
def test_a_native_thread_fills_in_forecasts_between_the_stages(prefetch: str) -> None:
    """True ones of all layers of the next pass: written where `records.py` says, after the thread
    was told that there is time for moves."""
    physics = Physics(small_machine(), MODEL)
    names = PolicySet.of(schedule="hybrid", cache="mrs", prefetch=prefetch)
    steps = [with_forecasts(number) for number in range(len(STEPS) - 1)]
    moments = recorded_run(physics, SLOTS, names, steps)
    assert any(moment.routing.forecasts for moment in moments)
    _, brain = assembled(physics, SLOTS, names, steps)
    for moment in deepcopy(moments):
        assert decided_natively(brain, moment) == plan_words(moment)
        state = brain.state
        state.forecasts.count, state.forecasts.from_body = 0, bool(moment.routing.forecasts)
        on_native_thread(address(BEGIN_LOOK_AHEAD), state)
        if state.ahead.max_background > 0:
            write_forecasts(brain, moment.routing.forecasts)
        on_native_thread(address(FINISH_LOOK_AHEAD), state)
        assert background(brain, moment) == [[t.layer, t.expert] for t in moment.plan.background]
        learn_natively(brain, moment)
    assert any(moment.plan.background for moment in moments)


def with_forecasts(number: int) -> RandomStep:
    """Each layer knows those that follow, up to the last one of the next pass."""
    layers = MODEL.num_moe_layers
    order = [
        (step, layer, STEPS[step].layer(layer))
        for step in (number, number + 1)
        for layer in range(layers)
    ]
    return RandomStep(
        tuple(
            replace(
                order[layer][2],
                forecasts=tuple(
                    Forecast(later, routing.experts, routing.weights, step)
                    for step, later, routing in order[layer + 1 : layer + 4]
                ),
            )
            for layer in range(layers)
        ),
        STEPS[number].step,
    )


def write_forecasts(brain: Brain, forecasts: tuple[Forecast, ...]) -> None:
    """As native code would: into the arrays, without a function of the brain."""
    state = brain.state
    for number, forecast in enumerate(forecasts[: state.sizes.lookahead]):
        size, step = forecast.ranked.size, forecast.step or 0
        state.forecasts.shapes[number] = (forecast.layer, *forecast.ranked.shape)
        state.forecasts.steps[number] = step
        state.forecasts.ids[number, :size] = forecast.ranked.ravel()
        state.forecasts.scores[number, :size] = forecast.scores.ravel()
        state.forecasts.count = number + 1


def decided_natively(brain: Brain, moment: Moment) -> list[int]:
    state = fill(brain, moment)
    on_native_thread(address(DECIDE), state)
    plan: list[int] = brain.state.decision.plan.tolist()
    return plan[: PLAN_HEADER + plan[0] + plan[1]]


def plan_words(moment: Moment) -> list[int]:
    plan = moment.plan
    queues = [plan.queues["gpu"], plan.queues["cpu"]]
    header = [*map(len, queues), len(plan.transfers), plan.believed_ns]
    return [*header, *queues[0], *queues[1]]


def background(brain: Brain, moment: Moment) -> list[list[int]]:
    found: list[list[int]] = brain.state.ahead.background[:, :2].tolist()
    return found[: len(moment.plan.background)]


def learn_natively(brain: Brain, moment: Moment) -> None:
    state, report = brain.state, moment.report
    fill_report(
        state.report, report.start_ns, report.end_ns, report.active, report.hits, report.cpu_ns
    )
    on_native_thread(address(LEARN), state)
