"""Is a description with any numbers either simulated or refused by field, never a traceback?"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import small_model
from moesaic.core.errors import BadMachine, MoesaicError
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.policies.systems import load_system

NAMES = ("h200-emr16", "trimoe-paper")
TEXTS = {name: (files("moesaic.hardware") / "data" / f"{name}.toml").read_text() for name in NAMES}
_VALUE = re.compile(r"^(\w+) = \{ value = ([^,]+),")


def with_values(name: str, values: dict[str, str]) -> bytes:
    """The file of a known machine with these values, written as in TOML, by key."""
    lines, section, left = [], "", set(values)
    for line in TEXTS[name].splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        found = _VALUE.match(line)
        key = f"{section}.{found[1]}" if found else ""
        if found and key in values:
            left.remove(key)
            lines.append(line.replace(f"value = {found[2]},", f"value = {values[key]},", 1))
        else:
            lines.append(line)
    assert not left, f"no such numbers: {left}"
    return "\n".join(lines).encode()


def simulated(machine: MachineSpec, system: str) -> float:
    """Seconds of a step of four tokens."""
    policies = load_system(system).policies
    run = Settings(
        small_model(), machine, policies=policies, batch=4, tokens=2, warmup=1, profile_tokens=8
    )
    result = simulate(run, choose_workload(None, run).source)
    return float(result.as_dict()["latency_s"]["mean"])


KEYS = {name: tuple(load_machine(name).values()) for name in NAMES}
NUMBERS = st.one_of(
    st.floats(-12, 12).map(lambda power: repr(10.0**power)),
    st.integers(-5, 10**7).map(str),
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(["true", '"16"', "[]", "0x" + "f" * 5000, "1e308", "5e-324", "-0.0", "inf"]),
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_values_are_read_or_refused(name: str, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(KEYS[name]), min_size=1, max_size=4, unique=True))
    values = {key: data.draw(NUMBERS) for key in keys}
    with suppress(BadMachine):
        parse_machine(with_values(name, values), "mine.toml")


@pytest.mark.parametrize(
    ("name", "system"), [("h200-emr16", "moesaic"), ("trimoe-paper", "trimoe")]
)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_is_read_is_simulated_or_refused(name: str, system: str, data: st.DataObject) -> None:
    """Mostly values that pass: those at the ends of what a number may be, several at once."""
    keys = data.draw(st.lists(st.sampled_from(KEYS[name]), min_size=1, max_size=6, unique=True))
    values = {key: repr(data.draw(st.sampled_from(_ENDS))) for key in keys}
    with suppress(MoesaicError):
        machine = parse_machine(with_values(name, values), "mine.toml")
        assert simulated(machine, system) >= 0


_ENDS = (1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 1.0, 2, 8, 16, 1e3, 1e6, 1e7, 1e9)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"pcie.bandwidth_gb_s": "-1.0"}, "pcie.bandwidth_gb_s"),
        ({"pcie.bandwidth_gb_s": "0"}, "pcie.bandwidth_gb_s"),
        ({"pcie.bandwidth_gb_s": "nan"}, "pcie.bandwidth_gb_s"),
        ({"pcie.bandwidth_gb_s": "inf"}, "pcie.bandwidth_gb_s"),
        ({"pcie.bandwidth_gb_s": "1e-300"}, "pcie.bandwidth_gb_s"),
        ({"pcie.bandwidth_gb_s": "1e300"}, "pcie.bandwidth_gb_s"),
        ({"gpu.matmul_tflops.bf16": "1e-12"}, "gpu.matmul_tflops.bf16"),
        ({"cpu.bandwidth_efficiency": "1e-9"}, "cpu.bandwidth_efficiency"),
        ({"cpu.first_expert_us": "1e12"}, "cpu.first_expert_us"),
        ({"cpu.cores": "1" + "0" * 400}, "cpu.cores.value"),
        ({"cpu.cores": "0x" + "f" * 5000}, "cpu.cores.value"),
        ({"gpu.memory_gb": "1" + "0" * 5000}, "file"),
    ],
)
def test_absurd_numbers_are_refused_by_field(values: dict[str, str], field: str) -> None:
    with pytest.raises(BadMachine, match="expected") as caught:
        parse_machine(with_values("h200-emr16", values), "mine.toml")
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"dimms.count": "12"}, "dimms.count"),
        ({"dimms.count": "1000000"}, "dimms.count"),
        ({"dimms.channels": "16000", "dimms.count": "16000"}, "dimms.count"),
        ({"ndp.count": "17"}, "ndp.count"),
        ({"ndp.count": "-1"}, "ndp.count"),
    ],
)
def test_dimms_that_cannot_be_are_refused_by_field(values: dict[str, str], field: str) -> None:
    with pytest.raises(BadMachine, match="expected") as caught:
        parse_machine(with_values("trimoe-paper", values), "mine.toml")
    assert caught.value.field == field


def test_a_link_between_dimms_that_are_not_there_is_refused() -> None:
    link = """
[links.mine]
source = "dimm3"
destination = "dimm99"
bandwidth_gb_s = { value = 1.0, source = "x" }
latency_us = { value = 1.0, source = "x" }
"""
    with pytest.raises(BadMachine, match=r"dimm15, .*not 'dimm99'") as caught:
        parse_machine((TEXTS["trimoe-paper"] + link).encode(), "mine.toml")
    assert caught.value.field == "links.mine.destination"


def test_tables_nested_too_deep_are_refused() -> None:
    with pytest.raises(BadMachine, match="nested"):
        parse_machine(b"notes = " + b"[" * 100_000, "mine.toml")
