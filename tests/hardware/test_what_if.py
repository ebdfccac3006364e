"""Is a machine with another number that machine and nothing else, or refused with a reason?"""

from __future__ import annotations

from typing import Any

import pytest

from moesaic.core.errors import ImpossibleSetting, MoesaicError, UnknownName
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_writer import machine_toml
from moesaic.hardware.what_if import SOURCE, changeable, changed

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
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], error: type[MoesaicError], words: str
) -> None:
    with pytest.raises(error, match=words):
        changed(PAPER, changes)


def test_a_machine_without_dimms_has_none_of_their_keys() -> None:
    assert not any(
        key.startswith(("dimm", "ndp")) for key in changeable(load_machine("h200-emr16"))
    )
