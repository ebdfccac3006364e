"""Do the compiled policies of docs/add-a-policy.md run at full speed: one file, no Python in a
decision, and the same plans as the guide's policies in Python?"""

from __future__ import annotations

import ctypes
import re
from copy import deepcopy
from pathlib import Path

import pytest
from recording import Moment, recorded_run
from test_native_thread import MODEL, SLOTS, STEPS, background, fill, plan_words

from closed_loop import assembled
from made_up import small_machine
from moesaic.core.plugins import load_plugin
from moesaic.machines.sim.physics import Physics
from moesaic.policies.brain import Brain
from moesaic.policies.brain.learn import fill_report
from moesaic.policies.brain.stages import DECIDE, LEARN, LOOK_AHEAD, address
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.records import PLAN_HEADER, State

GUIDE = Path(__file__).parents[2] / "docs" / "add-a-policy.md"
SECONDS = 20


@pytest.fixture
def guide(own_policies: None, tmp_path: Path) -> None:
    """Its two files of policies: in Python and compiled."""
    found = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    for name, text in (("in_python.py", found[0]), ("with_rules.py", found[2])):
        (tmp_path / name).write_text(text)
        load_plugin(str(tmp_path / name))


class Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def without_the_interpreter(function: int, state: State) -> None:
    """Run a C function on a thread that the C library starts, while this one keeps the interpreter
    to itself: a call of Python would wait for ever."""
    libc = ctypes.PyDLL(None)
    thread, now = ctypes.c_ulong(), Time()
    libc.clock_gettime(0, ctypes.byref(now))
    until = Time(now.seconds + SECONDS, now.nanoseconds)
    start, given = ctypes.c_void_p(function), ctypes.c_void_p(state.address)
    assert libc.pthread_create(ctypes.byref(thread), None, start, given) == 0
    waited = libc.pthread_timedjoin_np(thread, None, ctypes.byref(until))
    assert waited == 0, "it waits for the interpreter"


def test_a_call_of_python_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_documented_rules.SECONDS", 1)
    called = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda state: 0)
    number = ctypes.cast(called, ctypes.c_void_p).value
    assert number is not None
    state = assembled(Physics(small_machine(), MODEL), SLOTS, PolicySet(), STEPS)[1].state
    with pytest.raises(AssertionError, match="it waits for the interpreter"):
        without_the_interpreter(number, state)
    _KEPT.append(called)  # the thread calls it once the interpreter is free


_KEPT: list[object] = []


def test_the_guides_rules_decide_without_python(guide: None) -> None:
    physics = Physics(small_machine(), MODEL)
    names = PolicySet.of(
        schedule="fast-alternate", cache="fast-latest-score", prefetch="first-choices"
    )
    moments = recorded_run(physics, SLOTS, names, STEPS)
    assert any(moment.plan.transfers for moment in moments)
    assert any(moment.plan.background for moment in moments), "the prefetch rule was asked"
    brain = unchecked(physics, names)
    assert brain.runs_natively
    for moment in deepcopy(moments):
        state = fill(brain, moment)
        without_the_interpreter(address(DECIDE), state)
        plan = state.decision.plan.tolist()
        assert plan[: PLAN_HEADER + plan[0] + plan[1]] == plan_words(moment)
        state.forecasts.count = state.forecasts.from_body = 0
        without_the_interpreter(address(LOOK_AHEAD), state)
        assert background(brain, moment) == [[t.layer, t.expert] for t in moment.plan.background]
        report(state, moment)
        without_the_interpreter(address(LEARN), state)


def test_compiled_or_not_the_guides_policies_make_the_same_plans(guide: None) -> None:
    """But for promotions: what the link's time is worth is valued by the compiled rule, which the
    schedule in Python has not."""
    physics = Physics(small_machine(), MODEL)
    found = []
    for fast in ("", "fast-"):
        schedule, cache = f"{fast}alternate", f"{fast}latest-score"
        policies = PolicySet.of(schedule=schedule, cache=cache, prefetch="none", promote=False)
        found.append([moment.plan for moment in recorded_run(physics, SLOTS, policies, STEPS)])
    assert found[0] == found[1]
    assert any(plan.transfers for plan in found[0])


def unchecked(physics: Physics, names: PolicySet) -> Brain:
    """As a machine that runs natively has it: nothing in Python looks at its plans."""
    _, brain = assembled(physics, SLOTS, names, STEPS)
    brain._checked, brain._future = False, None
    return brain


def report(state: State, moment: Moment) -> None:
    seen = moment.report
    times = seen.start_ns, seen.end_ns
    fill_report(state.report, *times, seen.active, seen.hits, seen.cpu_ns)
