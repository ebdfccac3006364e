"""Does the simulator predict decode steps that were recorded on a GPU?

`recorded_cuda_steps.json` has medians of 48 decode steps on the reference machine (H200, 16 AMX
cores; OLMoE's shape with 8 layers, synthetic routing); `recorded_cuda_machine.toml` is the
description that these steps' own times make, by the profile's formulas. Where the engine's thread
returned late because every core was busy waiting, that is taken out: it is mended since."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.fidelity import predict
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.workload import choose_workload
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.workloads.source import TraceSource

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "recorded_cuda_steps.json").read_text())
MACHINE = load_machine(str(HERE / "recorded_cuda_machine.toml"))
SPEC = synthetic_architecture(RECORDED["model"], RECORDED["layers"]).spec
TOLERANCE = 0.11


@cache
def source() -> TraceSource:
    steps, warmup = RECORDED["steps"], RECORDED["warmup"]
    return choose_workload(None, Settings(SPEC, MACHINE, tokens=steps, warmup=warmup)).source


def error(row: dict[str, Any], machine: MachineSpec = MACHINE) -> float:
    _, result = predict(
        SPEC, machine, source(), row["system"], row["cache_ratio"], RECORDED["steps"],
        row["expert_dtype"], "described",
    )  # fmt: skip
    return float(median(result.latencies_s) * 1e3 / row["measured_ms"] - 1)


def rows(system: str, dtype: str) -> list[dict[str, Any]]:
    return [
        row for row in RECORDED["rows"] if (row["system"], row["expert_dtype"]) == (system, dtype)
    ]


@pytest.mark.parametrize("system", ["ktransformers", "adapmoe"])
def test_systems_that_make_one_thing_the_bottleneck(system: str) -> None:
    assert all(abs(error(row)) < TOLERANCE for row in rows(system, "int4"))


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_link_and_cpu_beside_each_other(dtype: str) -> None:
    """What the link's use says more than halves the error."""
    plain = replace(MACHINE, pcie_use=None)
    measured = rows("hybrimoe", dtype)
    errors, before = [error(row) for row in measured], [error(row, plain) for row in measured]
    assert all(abs(each) < TOLERANCE for each in errors), errors
    assert 2 * sum(map(abs, errors)) < sum(map(abs, before))
