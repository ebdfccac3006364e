"""Does a DIMM's unit take the time that its multipliers, its buffer and its memory allow?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dimm_machines import UNIT, dimm_machine
from made_up import small_model
from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.ndp_unit_time import (
    Expert,
    channel_bytes,
    pass_sizes,
    tokens_per_pass,
    unit_ns,
)
from moesaic.machines.sim.dram.bandwidth import stream_bandwidth
from moesaic.machines.sim.dram.timing_file import load_timing
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model

SMALL = Expert(hidden=100, intermediate=100, weight_bytes=60_000)
QWEN3 = Expert(hidden=4096, intermediate=1536, weight_bytes=37_748_736)


def test_the_papers_unit_has_256_gflops() -> None:
    """256 multipliers x 8 values x 2 operations every 16 cycles of 1 ns."""
    unit = load_machine("trimoe-paper").ndp
    assert unit is not None
    assert unit.tflops == 0.256


def test_the_buffer_holds_inputs_and_intermediate_values() -> None:
    """400 B per token of the small expert; 11,264 B of Qwen3-235B's: 23 in 256 KiB."""
    unit = load_machine("trimoe-paper").ndp
    assert unit is not None
    assert tokens_per_pass(UNIT, SMALL) == 2
    assert tokens_per_pass(unit, QWEN3) == 23
    assert tokens_per_pass(replace(UNIT, buffer_kib=0.1), SMALL) == 1, "a piece at a time"


@pytest.mark.parametrize(
    ("tokens", "fitting", "sizes"),
    [
        (1, 2, (1, 1, 1)),
        (2, 2, (1, 2, 1)),
        (3, 2, (2, 2, 1)),
        (5, 2, (3, 2, 2)),
        (24, 23, (2, 12, 2)),
    ],
)
def test_passes_are_even(tokens: int, fitting: int, sizes: tuple[int, int, int]) -> None:
    passes, larger, count = pass_sizes(tokens, fitting)
    assert (passes, larger, count) == sizes
    assert count * larger + (passes - count) * (larger - 1) == tokens


@pytest.mark.parametrize(
    ("tokens", "ns"),
    [
        (1, 2000 + 1),  # reads 60 kB at 30 GB/s; 1 ns in the activation unit
        (2, 3000 + 2),  # multiplies for 1.5 us per token
        (3, 3000 + 2000 + 3),  # a pass of two, and a pass of one that waits for its weights
        (4, 6000 + 4),
        (5, 2 * 3000 + 2000 + 5),
    ],
)
def test_a_pass_takes_the_longer_of_reading_and_multiplying(tokens: int, ns: int) -> None:
    assert unit_ns(UNIT, SMALL, tokens) == pytest.approx(ns)


def test_a_second_pass_is_free_where_every_pass_multiplies_longer_than_it_reads() -> None:
    unit = load_machine("trimoe-paper").ndp
    assert unit is not None
    boundless = replace(unit, buffer_kib=1e6)
    assert unit_ns(unit, QWEN3, 24) == pytest.approx(unit_ns(boundless, QWEN3, 24))


def test_the_papers_ridge_is_at_five_thirds_of_a_token() -> None:
    """At 153.6 GB/s: 256 GFLOPS / (153.6 GB/s x 1 FLOP per byte and token)."""
    unit = load_machine("trimoe-paper").ndp
    assert unit is not None
    unit = replace(unit, bandwidth_efficiency=1.0, activation_cycles=1e-9)
    reading = 37_748_736 / 153.6
    assert unit_ns(unit, QWEN3, 1) == pytest.approx(reading)
    assert unit_ns(unit, QWEN3, 2) == pytest.approx(reading * 2 / (256 / 153.6))


def test_activations_cross_the_channel_there_and_back() -> None:
    """Two tokens: 2 x 2 x 100 values of 2 B at 3 GB/s are 266.7 ns, beside 1 us of overhead."""
    physics = Physics(dimm_machine(), small_model())
    assert channel_bytes(SMALL, 2) == 800
    assert physics.expert_ns("ndp1", 2, "whole@dimm1") == 1000 + 3002 + 267
    assert physics.first_ns("ndp1") == 3000


def test_part_of_an_expert_takes_part_of_the_time() -> None:
    """Half the width, two tokens: 1.5 us, 1 ns of activation, all of the activations."""
    physics = Physics(dimm_machine(), small_model())
    assert physics.expert_ns("ndp1", 2, "whole@dimm1", 500) == 1000 + 1501 + 267


def test_a_unit_multiplies_16_bit_weights_only() -> None:
    physics = Physics(dimm_machine(), small_model(), expert_dtype="int4")
    with pytest.raises(ImpossibleSetting, match="a unit has no matmul rate for 'int4' weights"):
        physics.expert_ns("ndp0", 1, "whole@dimm0")


@pytest.mark.parametrize("name", ["trimoe-paper", "h200-emr16-ndp"])
def test_described_bandwidths_are_the_dram_models(name: str) -> None:
    machine, expert = load_machine(name), load_model("qwen3-235b-a22b").expert_bytes("bf16")
    assert machine.dimms is not None
    assert machine.ndp is not None
    timing = load_timing("ddr5-4800-trimoe")
    host = stream_bandwidth(timing, expert, "host", ranks=4, sub_channels=2)
    near = stream_bandwidth(timing, expert, "ndp", ranks=4, sub_channels=2)
    assert machine.dimms.host_gb_s == pytest.approx(host.bytes_per_s / 1e9, rel=1e-3)
    assert machine.ndp.internal_gb_s == pytest.approx(near.bytes_per_s / 1e9, rel=1e-3)


@pytest.mark.parametrize(("dtype", "read_ns"), [("int8", 1000), ("int4", 500)])
def test_integer_weights_are_shorter_and_multiplied_at_the_stated_rate(
    dtype: str, read_ns: int
) -> None:
    """60 kB in 16 bits at 30 GB/s are 2 us; at 40 GFLOPS a token takes 1.5 us, at 10 GFLOPS 6."""
    spec = dimm_machine()
    assert spec.ndp is not None
    expert = Expert(100, 100, 30_000 if dtype == "int8" else 15_000)
    fast = replace(UNIT, integer_tflops={dtype: 0.04})
    slow = replace(UNIT, integer_tflops={dtype: 0.01})
    assert unit_ns(fast, expert, 1, 0.04) == max(read_ns, 1500) + 1
    model = small_model()
    found = {}
    for name, unit in (("fast", fast), ("slow", slow)):
        physics = Physics(replace(spec, ndp=unit), model, dtype)
        found[name] = physics.expert_ns("ndp0", 1)
    assert found["slow"] - found["fast"] == 4500
    with pytest.raises(ImpossibleSetting, match="no matmul rate"):
        Physics(spec, model, dtype).expert_ns("ndp0", 1)


def test_only_integers_have_a_rate_of_their_own() -> None:
    with pytest.raises(ImpossibleSetting, match=r"ndp.integer_tflops.fp32: expected one of int8"):
        replace(dimm_machine(), ndp=replace(UNIT, integer_tflops={"fp32": 1.0}))
