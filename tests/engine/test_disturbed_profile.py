"""Is a measurement that cannot be true recognised, and written down as such?"""

from __future__ import annotations

from dataclasses import replace

from moesaic.hardware.host import this_host
from moesaic.hardware.machine_writer import machine_toml
from moesaic.lab.profile.engine_times import EngineTimes
from moesaic.lab.profile.expert_times import ExpertTimes
from moesaic.lab.profile.machine_profile import (
    DeviceTimes,
    MachineProfile,
    contradictions,
    describe,
)
from moesaic.lab.profile.memory_times import LinkTimes

TIMES = {1: 1200.0, 256: 4700.0}
EXPERTS = ExpertTimes(
    by_tokens={"bf16": TIMES, "int8": {1: 4200.0, 256: 7400.0}, "int4": {1: 5600.0, 256: 9000.0}},
    overhead_us=150.0,
    bandwidth_gb_s=8.0,
    first_us=40.0,
    tflops={"bf16": 0.7, "int8": 0.4, "int4": 0.35},
)
DEVICE = DeviceTimes(1, 15.0, EXPERTS)
LINK = LinkTimes(120.0, 2.0, 1.9, 1.2, 0.3)
ENGINE = EngineTimes(5500.0, 34_000_000, 900.0, 60.0, 400.0, 30.0, {"gpu": 1900.0, "cpu": 1900.0})
QUIET = MachineProfile("emulated", 2, DEVICE, DEVICE, LINK, ENGINE, {})


def test_a_quiet_measurement_is_believed() -> None:
    assert contradictions(QUIET) == []
    described = describe(QUIET, this_host(), "this-emulated")
    assert not any("Disturbed" in note for note in described.notes)


def test_unpacking_is_described_as_slow_as_it_is() -> None:
    """By its bytes an int4 expert would be three times faster than bf16; it takes longer."""
    cpu = describe(QUIET, this_host(), "this-emulated").cpu
    assert cpu.expert_gb_s["int4"] < cpu.effective_bandwidth_gb_s / 4
    assert cpu.expert_bandwidth_gb_s("bf16") == cpu.effective_bandwidth_gb_s


def test_one_token_that_takes_longer_than_many_is_a_contradiction() -> None:
    times = {**EXPERTS.by_tokens, "bf16": {1: 18_706.0, 256: 4700.0}}
    odd = replace(DEVICE, experts=replace(EXPERTS, by_tokens=times))
    (said,) = contradictions(replace(QUIET, cpu=odd))
    assert "bf16" in said
    described = describe(replace(QUIET, cpu=odd), this_host(), "this-emulated")
    assert described.notes[0].startswith("Disturbed, measure again")
    assert "Disturbed" in machine_toml(described)


def test_experts_far_below_the_memory_are_a_contradiction() -> None:
    slow = replace(DEVICE, experts=replace(EXPERTS, bandwidth_gb_s=1.6))
    assert "1.6" in contradictions(replace(QUIET, gpu=slow))[0]


def test_an_overhead_as_large_as_the_expert_leaves_possible_rates() -> None:
    """Noise puts nearly all of a small expert's time into the overhead."""
    one = EXPERTS.by_tokens["bf16"][1]
    odd = replace(DEVICE, experts=replace(EXPERTS, overhead_us=one - 1e-9))
    rates = describe(replace(QUIET, gpu=odd), this_host(), "this-emulated").gpu.expert_gb_s
    quiet = describe(QUIET, this_host(), "this-emulated").gpu.expert_gb_s
    for dtype, rate in rates.items():
        assert quiet[dtype] / 4 < rate < quiet[dtype] * 4
