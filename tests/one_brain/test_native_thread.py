"""Can a thread that knows no Python use the brain, and does it decide the same?"""

from __future__ import annotations

import ctypes
from copy import deepcopy

import numpy as np
import pytest
from recording import Moment, recorded_run

from closed_loop import assembled
from made_up import random_steps, small_machine, small_model
from moesaic.machines.sim.physics import Physics
from moesaic.policies.brain import Brain
from moesaic.policies.brain import fields as at
from moesaic.policies.brain.c_functions import addresses
from moesaic.policies.brain.decide import fill_routing, fill_view
from moesaic.policies.brain.learn import fill_report
from moesaic.policies.policy_set import PolicySet

MODEL = small_model(layers=4, experts=8, top_k=2)
SLOTS = 12
STEPS = random_steps(5, 8, MODEL)


def on_native_thread(address: int, words: np.ndarray) -> None:
    """Run a C function of one pointer on a thread that the C library starts; Python waits for it
    outside the interpreter."""
    libc = ctypes.CDLL(None, use_errno=True)
    thread = ctypes.c_ulong()
    pointer, start = ctypes.c_void_p(words.ctypes.data), ctypes.c_void_p(address)
    assert libc.pthread_create(ctypes.byref(thread), None, start, pointer) == 0
    assert libc.pthread_join(thread, None) == 0


def fill(brain: Brain, moment: Moment, step: int) -> np.ndarray:
    """What a body in native code would write into the buffer."""
    words, routing, view = brain.state.words, moment.routing, moment.view
    words[at.NUM_FLIGHTS] = len(view.in_flight)
    for number, flight in enumerate(view.in_flight):
        brain.state.of(at.FLIGHTS)[number] = flight[:3]
    fill_routing(words, step, routing.layer, routing.experts, routing.ranked, routing.scores)
    busy = (view.gpu_busy_ns, view.cpu_busy_ns, view.pcie_busy_ns)
    fill_view(words, view.resident, view.held, view.occupied, *busy)
    words[at.FORECASTS] = words[at.FORETOLD] = 0
    return words


@pytest.mark.parametrize("policies", [("hybrid", "mrs", "impact"), ("best-split", "lru", "none")])
def test_a_native_thread_decides_what_python_decided(policies: tuple[str, str, str]) -> None:
    schedule, cache, prefetch = policies
    physics = Physics(small_machine(), MODEL)
    names = PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)
    moments = recorded_run(physics, SLOTS, names, STEPS)
    _, brain = assembled(physics, SLOTS, names, STEPS)
    entry, step = addresses(), -1
    for moment in deepcopy(moments):
        step += moment.routing.layer == 0
        words = fill(brain, moment, step)
        on_native_thread(entry.decide, words)
        plan = brain.state.of(at.PLAN).tolist()
        queued = [*moment.plan.queues["gpu"], *moment.plan.queues["cpu"]]
        moved = len(moment.plan.transfers)
        assert plan[: at.PLAN_HEADER + len(queued)] == [
            *map(len, moment.plan.queues.values()), moved, moment.plan.believed_ns, *queued,
        ]  # fmt: skip
        on_native_thread(entry.look_ahead, words)
        background = brain.state.of(at.BACKGROUND)[: len(moment.plan.background), :2].tolist()
        assert background == [[t.layer, t.expert] for t in moment.plan.background]
        report = moment.report
        fill_report(words, report.start_ns, report.end_ns, report.active, report.hits)
        on_native_thread(entry.learn, words)
    assert any(moment.plan.background for moment in moments) or policies[2] == "none"
