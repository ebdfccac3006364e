"""Does a plan still pay once deciding is charged, on a machine with its own physics?"""

from __future__ import annotations

import pytest

from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_set import PolicySet


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
