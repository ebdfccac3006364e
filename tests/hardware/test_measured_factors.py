"""What `moesaic profile` adds to a description: times over the roofline by token count, fixed costs
of a GPU, the advised system. Are they read, refused and charged?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moesaic.core.errors import BadMachine
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_writer import machine_toml
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model

PLAIN, MODEL = load_machine("h200-emr16"), load_model("olmoe-1b-7b")


def measured() -> MachineSpec:
    gpu = replace(
        PLAIN.gpu,
        expert_factor={"bf16-1": 1.0, "bf16-4": 3.0, "int4-2": 9.0},
        once_us={"launch": 16.0, "step": 250.0},
    )
    spec = replace(PLAIN, gpu=gpu, system="moesaic-lru")
    return replace(spec, sources=dict.fromkeys(spec.values(), "measured"))


def test_a_measured_description_reads_back() -> None:
    text = machine_toml(measured())
    assert parse_machine(text.encode(), "mine") == measured()
    assert "once_us" not in machine_toml(PLAIN)
    assert "system" not in machine_toml(PLAIN).splitlines()[3]


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("bf16-4 =", "bf16-four =", "expected a weight precision and a number of tokens"),
        ("bf16-4 =", "bf16-04 =", "expected a weight precision and a number of tokens"),
        ("bf16-4 =", "bf17-4 =", "expected a weight precision and a number of tokens"),
        ("launch =", "lunch =", "unknown field; expected one of launch, step"),
        ('system = "moesaic-lru"', 'system = ""', "expected a text"),
    ],
)
def test_what_it_cannot_mean_is_refused(before: str, after: str, field: str) -> None:
    text = machine_toml(measured())
    assert before in text
    with pytest.raises(BadMachine, match=field):
        parse_machine(text.replace(before, after, 1).encode(), "mine")


def test_factors_lie_on_straight_lines() -> None:
    plain, with_factors = Physics(PLAIN, MODEL), Physics(measured(), MODEL)
    overhead = round(PLAIN.gpu.expert_overhead_us * 1000)
    for tokens, factor in ((1, 1.0), (2, 5 / 3), (4, 3.0), (64, 3.0)):
        usual = plain.expert_ns("gpu", tokens) - overhead
        assert with_factors.expert_ns("gpu", tokens) - overhead == pytest.approx(
            usual * factor, abs=1
        )
    assert with_factors.expert_ns("cpu", 4) == plain.expert_ns("cpu", 4)


def test_a_launch_is_charged_once_per_layer_and_shared_by_its_experts() -> None:
    """16 us over eight experts: two for each, as a real machine measures them."""
    physics = Physics(measured(), MODEL)
    assert physics.first_ns("gpu") == 16_000
    assert physics.probed_ns("gpu", 1) - physics.expert_ns("gpu", 1) == 2_000
    machine = SimMachine(physics, slots=8)
    assert machine.probe("gpu", 1, 3) == 3 * physics.probed_ns("gpu", 1)


def test_a_step_costs_more_than_its_layers() -> None:
    plain, with_step = (Physics(spec, MODEL).head_ns(1) for spec in (PLAIN, measured()))
    assert with_step - plain == 250_000
