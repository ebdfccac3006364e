"""One file of learned expert uses gives both bodies the same initial placement and the same first
values of the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stock
from moesaic import LLM
from moesaic.engine.learned_placement import profiled_model
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble
from moesaic.policies.expert_profile import ExpertProfile, read_profile
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import load_system


@pytest.mark.parametrize("system", ["moesaic", "ktransformers"])
def test_engine_and_simulator_start_alike(tmp_path: Path, system: str) -> None:
    path, folder = tmp_path / "uses.json", stock.saved("olmoe").folder
    options: dict[str, Any] = {
        "accelerator": "emulated",
        "cache_ratio": 0.4,
        "threads": 1,
        "max_model_len": 64,
    }
    with LLM(folder, system=system, **options) as model:
        spec = model.model.spec
    known = profiled_model(spec)
    random = np.random.default_rng(3)
    counts = random.integers(0, 90, (known.shape.layers, known.shape.experts))
    ExpertProfile(known, 100, counts).write(path)
    with LLM(folder, system=system, placement=path, **options) as model:
        runner = model.model.runner
        real = runner.machine.residency.resident.copy()
        values = runner.brain.cache.values.copy()
    policies: PolicySet = load_system(system).policies
    settings = Settings(
        spec, load_machine("h200-emr16"), policies=policies, cache_ratio=0.4,
        placement=read_profile(path, known),
    )  # fmt: skip
    assert settings.placement is not None
    machine, brain = assemble(settings, settings.placement.counts, [], None)
    assert real.any()
    assert (machine.memory.resident == real).all()
    assert (brain.cache.values == values).all()
