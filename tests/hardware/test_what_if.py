"""Is a machine with another number that machine and nothing else, or refused with a reason?"""

from __future__ import annotations

from typing import Any

import pytest

from made_up import long
from moesaic.core.errors import ImpossibleSetting, MoesaicError, UnknownName
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_writer import machine_toml
from moesaic.hardware.what_if import SOURCE, changeable, changed, described_names

PAPER = load_machine("trimoe-paper")


@pytest.mark.parametrize("units", [0, 4, 8, 16])
def test_the_number_of_units(units: int) -> None:
    machine = changed(PAPER, {"ndp.count": str(units)})
    before, after = PAPER.values(), machine.values()
    assert {k for k in before if before[k] != after[k]} <= {"ndp.count"}
    assert len(machine.topology().devices) == 2 + units
    assert machine.sources["ndp.count"] == (PAPER.sources["ndp.count"] if units == 16 else SOURCE)


def test_tflops_stand_for_all_rates() -> None:
    """A quarter of 90.1 TFLOP/s: also a quarter of the int8 rate."""
    machine = changed(PAPER, {"cpu.tflops": 90.1 / 4})
    assert machine.cpu.matmul_tflops == pytest.approx(
        {"bf16": 22.525, "int8": 45.05, "int4": 45.05}
    )
    one = changed(PAPER, {"cpu.matmul_tflops.int8": 7})
    assert one.cpu.matmul_tflops == {"bf16": 90.1, "int8": 7.0, "int4": 180.2}


def test_rules_and_numbers_change_together() -> None:
    """Twice the channels alone leave the CPU's bandwidth as it was; half of them need both."""
    rules = {"dimms.contention": "full", "dimms.sharing": "none", "dimm_link.topology": "ring"}
    machine = changed(PAPER, rules)
    assert machine.dimms is not None
    assert machine.dimm_link is not None
    found = machine.dimms.contention, machine.dimms.sharing, machine.dimm_link.topology
    assert found == ("full", "none", "ring")
    half = {"dimms.channels": 4, "cpu.memory_bandwidth_gb_s": 153.6}
    assert changed(PAPER, half).cpu.memory_bandwidth_gb_s == 153.6
    with pytest.raises(ImpossibleSetting, match="what the channels have"):
        changed(PAPER, {"dimms.channels": 4})


def test_parts_by_name() -> None:
    machine = changed(load_machine("h200-emr16"), {"resources.dram.bandwidth_gb_s": 200})
    assert machine.resources["dram"].bandwidth_gb_s == 200
    assert machine.resources["dram"].rule == "priority"


def test_a_changed_machine_is_written_and_read_back() -> None:
    machine = changed(
        PAPER, {"ndp.count": 4, "dimms.contention": "none", "pcie.bandwidth_gb_s": 54}
    )
    assert parse_machine(machine_toml(machine).encode(), "written") == machine


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"ndp.units": 4}, UnknownName, "number of trimoe-paper 'ndp.units'"),
        ({"ndp.count": 17}, ImpossibleSetting, "at most the 16 DIMMs, not 17"),
        ({"ndp.count": 2.5}, ImpossibleSetting, "ndp.count is 2.5: expected a whole number"),
        ({"ndp.count": "many"}, ImpossibleSetting, "ndp.count is 'many': expected a number"),
        ({"pcie.bandwidth_gb_s": -1}, ImpossibleSetting, "expected a number above 0"),
        ({"dimms.count": 12}, ImpossibleSetting, "a multiple of the 8 channels"),
        ({"dimms.contention": "half"}, ImpossibleSetting, "own-share"),
        ({"cpu.tflops": 0}, ImpossibleSetting, "expected a number above 0"),
        ({"cpu.tflops": 1e12}, ImpossibleSetting, r"cpu.tflops is .*1e-05 to 1,000,000 TFLOP/s"),
        ({"cpu.cores": 2.5}, ImpossibleSetting, "cpu.cores is 2.5: expected a whole number"),
        ({"ndp.gflops": -1}, ImpossibleSetting, "ndp.gflops is -1: expected a number above 0"),
        ({"pcie.gb_s": "nan"}, ImpossibleSetting, "pcie.gb_s is nan: expected a finite number"),
        ({"ndp.count": float("inf")}, ImpossibleSetting, "expected a finite number"),
        ({"dimms.count": 128}, ImpossibleSetting, "2 to 64, not 128"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], error: type[MoesaicError], words: str
) -> None:
    with pytest.raises(error, match=words):
        changed(PAPER, changes)


def numbers_changed(machine: str, changes: dict[str, Any]) -> dict[str, float]:
    """What differs, over what it was."""
    before, after = load_machine(machine).values(), changed(load_machine(machine), changes).values()
    return {key: after[key] / before[key] for key in before if before[key] != after[key]}


def test_twice_the_cores_are_twice_the_rates_and_the_bandwidth() -> None:
    """The channels have 307.2 GB/s, 2.36 times what 16 cores draw: three times as many cores
    cannot read three times as fast."""
    rates = [f"cpu.matmul_tflops.{dtype}" for dtype in ("bf16", "int8", "int4")]
    reads = [
        *(f"cpu.expert_gb_s.{dtype}" for dtype in ("bf16", "int4")),
        "cpu.memory_bandwidth_gb_s",
        "resources.dram.bandwidth_gb_s",
        "resources.dram.draws_gb_s.cpu",
    ]
    twice = numbers_changed("h200-emr16-ndp", {"cpu.cores": 32})
    assert twice == dict.fromkeys(["cpu.cores", *rates, *reads], 2.0)
    thrice = numbers_changed("h200-emr16-ndp", {"cpu.cores": 48})
    assert {key: thrice[key] for key in rates} == dict.fromkeys(rates, 3.0)
    assert {key: thrice[key] for key in reads} == pytest.approx(dict.fromkeys(reads, 307.2 / 130))


def test_bandwidth_reaches_what_was_measured_with_it() -> None:
    """Experts are read at a rate of their own there: another peak alone would change nothing."""
    cpu = numbers_changed("h200-emr16", {"cpu.bandwidth_gb_s": 260})
    assert cpu == dict.fromkeys(
        [
            "cpu.memory_bandwidth_gb_s",
            "cpu.expert_gb_s.bf16",
            "cpu.expert_gb_s.int4",
            "resources.dram.bandwidth_gb_s",
            "resources.dram.draws_gb_s.cpu",
        ],
        2.0,
    )
    gpu = numbers_changed("h200-emr16", {"gpu.bandwidth_gb_s": 2400})
    assert set(gpu) == {
        "gpu.memory_bandwidth_gb_s",
        "gpu.expert_gb_s.int8",
        "gpu.expert_gb_s.int4",
    }
    pcie = numbers_changed("h200-emr16", {"pcie.gb_s": 27})
    assert pcie == dict.fromkeys(["pcie.bandwidth_gb_s", "resources.dram.draws_gb_s.pcie"], 0.5)


def test_a_number_that_is_named_counts_whatever_follows_from_others() -> None:
    for order in (("cpu.cores", "cpu.tflops"), ("cpu.tflops", "cpu.cores")):
        values = {"cpu.cores": 32, "cpu.tflops": 20}
        machine = changed(load_machine("h200-emr16"), {name: values[name] for name in order})
        assert machine.cpu.matmul_tflops["bf16"] == 20
        assert machine.cpu.memory_bandwidth_gb_s == 260


def test_channels_come_with_their_dimms_and_units() -> None:
    machine = changed(PAPER, {"memory.channels": 4})
    assert machine.dimms is not None
    assert machine.ndp is not None
    found = machine.dimms.channels, machine.dimms.count, machine.ndp.count
    assert found == (4, 8, 8)
    assert machine.cpu.memory_bandwidth_gb_s == pytest.approx(153.6)


def test_a_unit_is_faster_by_its_clock() -> None:
    machine = changed(PAPER, {"ndp.gflops": 512, "ndp.buffer_kb": 64, "dimm_link.gb_s": 50})
    assert machine.ndp is not None
    assert machine.dimm_link is not None
    assert machine.ndp.tflops == pytest.approx(0.512)
    assert machine.ndp.buffer_kib == 64
    assert machine.dimm_link.bandwidth_gb_s == 50


MACHINES = ["trimoe-paper", "h200-emr16", "h200-emr16-ndp"]


@pytest.mark.parametrize("name", MACHINES)
def test_all_names_together_may_keep_their_values(name: str) -> None:
    machine = load_machine(name)
    values = {key: found.present for key, found in described_names(machine).items()}
    assert changed(machine, values).values() == pytest.approx(machine.values())


@pytest.mark.parametrize(
    "name", [name if name == "h200-emr16" else long(name) for name in MACHINES]
)
def test_every_name_may_keep_its_value(name: str) -> None:
    machine = load_machine(name)
    for key, found in described_names(machine).items():
        again = changed(machine, {key: found.present}).values()
        assert again == pytest.approx(machine.values()), key


def test_a_machine_without_dimms_has_none_of_their_keys() -> None:
    assert not any(
        key.startswith(("dimm", "ndp")) for key in changeable(load_machine("h200-emr16"))
    )
