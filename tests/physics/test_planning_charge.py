"""Is each system charged what its own decisions cost, and no other's?"""

from __future__ import annotations

import pytest

from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.machines.sim.planning_cost import PlanningCost
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape
from moesaic.policies.systems import SYSTEMS

MACHINE = load_machine("a6000-xeon5220r")
STATIC = {"ktransformers", "llama.cpp"}


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_only_systems_that_decide_at_run_time_are_charged(system: str, phase: str) -> None:
    settings = Settings(
        load_model("deepseek-v2-lite"), MACHINE, phase=phase, tokens=8, prompts=1, warmup=1,
        expert_dtype="int4", dense_dtype="int4", policies=SYSTEMS[system].policies,
    )  # fmt: skip
    result = simulate(settings, choose_workload(None, settings).source)
    assert (result.planning_s == 0.0) == (system in STATIC)


@pytest.mark.parametrize(
    ("policies", "decides", "looks_ahead"),
    [
        (PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none"), False, False),
        (PolicySet.of(schedule="gpu-only", cache="pinned", prefetch="none"), False, False),
        (PolicySet.of(schedule="threshold", cache="pinned", prefetch="none"), True, False),
        (PolicySet.of(schedule="static-experts", cache="lru", prefetch="none"), True, True),
        (PolicySet.of(schedule="hybrid", cache="lru", prefetch="none", promote=False), True, False),
        (PolicySet.of(schedule="gpu-only", cache="lru", promote=False), True, True),
    ],
)
def test_what_is_decided_follows_from_the_policies(
    policies: PolicySet, decides: bool, looks_ahead: bool
) -> None:
    composition = Composition(policies, Shape(2, 8, 2), 4)
    assert (composition.decides, composition.looks_ahead) == (decides, looks_ahead)
    cost = PlanningCost.of(MACHINE.planner, composition.decides, composition.looks_ahead)
    assert (cost.decision_ns(1, 4) > 0, cost.lookahead_ns(1, 4) > 0) == (decides, looks_ahead)


# Does a plan still pay once deciding is charged, on a machine with its own physics?


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "olmoe-1b-7b"])
@pytest.mark.parametrize("schedule", ["hybrid", "best-split"])
def test_with_every_expert_cached_nothing_beats_the_gpu_by_being_slower(
    model: str, schedule: str
) -> None:
    """The GPU works off shared experts while the decision is made: a plan that forgets this gives
    the CPU too much."""
    machine = load_machine("a6000-xeon5220r")
    took = {}
    for name in (schedule, "gpu-only"):
        policies = PolicySet.of(schedule=name, cache="mrs", prefetch="none")
        settings = Settings(
            load_model(model), machine, policies=policies, cache_ratio=1.0, tokens=8
        )
        took[name] = simulate(settings, choose_workload(None, settings).source).mean_s
    assert took[schedule] <= took["gpu-only"]
