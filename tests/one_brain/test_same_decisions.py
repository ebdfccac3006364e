"""One brain, several bodies: do the same routings, views and reports give the same plans?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from recording import Moment, recorded_run, replayed

from closed_loop import assembled, chosen
from conducted_run import assert_decided_again, load
from made_up import policy_combinations, random_steps, small_machine, small_model, values_first
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim.physics import Physics
from moesaic.policies.shape import Shape

MODEL = small_model(layers=4, experts=8, top_k=2)
SLOTS = 12
STEPS = random_steps(11, 12, MODEL)


def twice_as_fast() -> MachineSpec:
    machine = small_machine()
    return replace(
        machine,
        gpu=replace(machine.gpu, memory_bandwidth_gb_s=240.0),
        cpu=replace(machine.cpu, memory_bandwidth_gb_s=48.0),
        pcie=replace(machine.pcie, bandwidth_gb_s=8.0),
    )


def recorded(names: tuple[str, str, str], machine: MachineSpec | None = None) -> list[Moment]:
    physics = Physics(small_machine() if machine is None else machine, MODEL)
    return recorded_run(physics, SLOTS, chosen(*names), STEPS)


@pytest.mark.parametrize(("schedule", "cache", "prefetch"), values_first(policy_combinations()))
def test_a_recorded_run_is_decided_again_plan_for_plan(
    schedule: str, cache: str, prefetch: str
) -> None:
    names = (schedule, cache, prefetch)
    moments = recorded(names)
    _, fresh = assembled(Physics(small_machine(), MODEL), SLOTS, chosen(*names), STEPS)
    assert replayed(fresh, moments) == [moment.plan for moment in moments]


@pytest.mark.parametrize("schedule", ["hybrid", "best-split", "threshold"])
def test_what_another_machine_saw_is_decided_by_the_brain_that_saw_it(schedule: str) -> None:
    """A run on a faster machine has other views, times and plans; given them, a brain with that
    machine's belief decides as it did there, though it never met that machine."""
    names = (schedule, "mrs", "impact")
    slow, fast = recorded(names), recorded(names, twice_as_fast())
    assert [m.plan for m in slow] != [m.plan for m in fast]
    assert slow[-1].report.end_ns > fast[-1].report.end_ns
    _, brain = assembled(Physics(twice_as_fast(), MODEL), SLOTS, chosen(*names), STEPS)
    assert replayed(brain, fast) == [m.plan for m in fast]


def test_the_body_does_not_matter_only_what_it_says() -> None:
    """The belief of the slow machine, the views and reports of the fast one: two such brains
    agree with each other, and with neither recording."""
    names = ("hybrid", "mrs", "impact")
    slow, fast = recorded(names), recorded(names, twice_as_fast())
    policies, physics = chosen(*names), Physics(small_machine(), MODEL)
    plans = [replayed(assembled(physics, SLOTS, policies, STEPS)[1], fast) for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0] != [m.plan for m in fast]
    assert plans[0] != [m.plan for m in slow]


@pytest.mark.parametrize(("schedule", "cache", "prefetch"), values_first(policy_combinations()))
def test_planning_changes_neither_view_nor_routing(
    schedule: str, cache: str, prefetch: str
) -> None:
    """A snapshot is never to be changed: the body's own arrays are handed out."""
    names = (schedule, cache, prefetch)
    _, brain = assembled(Physics(small_machine(), MODEL), SLOTS, chosen(*names), STEPS)
    for moment in recorded_for_all():
        before = _frozen(moment)
        brain.plan(moment.routing, moment.view)
        assert _frozen(moment) == before


@cache
def recorded_for_all() -> list[Moment]:
    return recorded(("hybrid", "lru", "none"))[:8]


def _frozen(moment: Moment) -> tuple[object, ...]:
    return (
        moment.view.resident.tobytes(),
        moment.view.held.tobytes(),
        moment.view.occupied,
        moment.view.in_flight,
        moment.routing.experts.tobytes(),
        moment.routing.scores.tobytes(),
    )


# Does the brain decide here what it decided on a GPU? Every layer of captured decode steps that
# an H200 ran (`tests/cuda/record_conducted_run.py`), plan for plan and move for move.

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_what_a_gpu_decided_is_decided_again(path: Path) -> None:
    run = load(path)
    assert "H200" in run.machine
    assert_decided_again(run.brain(), run.routings, run.decisions, Shape(*run.shape), run.slots)
    assert any(decision["plan"][2] for decision in run.decisions), "some experts were brought"


def test_there_are_recordings() -> None:
    assert {path.name.split("_")[-1] for path in RECORDED} >= {"best-split.json.gz"}
