"""Are machine descriptions complete and plausible, and is a bad one refused with a reason?"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from moesaic.core.errors import BadMachine, ImpossibleSetting, UnknownName
from moesaic.hardware.machine_reader import known_machines, load_machine

MACHINES = (
    "a6000-xeon5220r",
    "a6000-xeon5220r-implied",
    "dgx-spark",
    "gh200-480gb",
    "h100-xeon8470",
    "h200-emr16",
    "h200-emr16-ndp",
    "rtx3090-r9-5950x",
    "rtx4080-i5-12400",
    "rtx4090-2x6454s",
    "rtx4090-i9-13900k",
    "rtx5070-r7-9700x",
    "rtx5090-r9-9950x",
    "trimoe-paper",
)
GOOD = (files("moesaic.hardware") / "data" / "h200-emr16.toml").read_text()


def edited(folder: Path, old: str, new: str) -> str:
    """The reference machine with one edit, as a user's file."""
    assert old in GOOD
    path = folder / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    return str(path)


def test_the_packaged_machines_are_known() -> None:
    assert known_machines() == MACHINES


def test_the_implied_machine_differs_in_one_number_only() -> None:
    implied = load_machine("a6000-xeon5220r-implied").values()
    described = load_machine("a6000-xeon5220r").values()
    assert {k for k in implied if implied[k] != described[k]} == {"cpu.bandwidth_efficiency"}


@pytest.mark.parametrize("name", MACHINES)
def test_every_number_has_a_source(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert machine.notes
    assert set(machine.sources) == set(machine.values())
    assert all(source.strip() for source in machine.sources.values())


@pytest.mark.parametrize("name", MACHINES)
def test_the_order_of_magnitudes_is_physical(name: str) -> None:
    machine = load_machine(name)
    gpu, cpu, pcie = machine.gpu, machine.cpu, machine.pcie
    assert pcie.bandwidth_gb_s < cpu.memory_bandwidth_gb_s
    if machine.unified is None:
        assert cpu.memory_bandwidth_gb_s < gpu.memory_bandwidth_gb_s
    else:
        assert cpu.memory_bandwidth_gb_s == gpu.memory_bandwidth_gb_s
    for dtype in ("bf16", "int8", "int4"):
        assert cpu.effective_tflops(dtype) < gpu.effective_tflops(dtype)
    assert cpu.matmul_tflops["bf16"] <= cpu.matmul_tflops["int8"]
    assert cpu.matmul_tflops["int4"] <= cpu.matmul_tflops["int8"]


def test_the_reference_machine_copies_as_measured() -> None:
    pcie = load_machine("h200-emr16").pcie
    for size, measured_us in ((9.44e6, 190), (2.65e6, 66)):  # an expert in bf16 and in int4
        taken = pcie.latency_us + size / pcie.bandwidth_gb_s / 1e3
        assert taken == pytest.approx(measured_us, abs=2)


def test_effective_rates_are_peak_times_efficiency() -> None:
    gpu = load_machine("a6000-xeon5220r").gpu
    assert gpu.effective_bandwidth_gb_s == pytest.approx(768 * gpu.bandwidth_efficiency)
    assert gpu.effective_tflops("int4") == pytest.approx(154.8 * gpu.matmul_efficiency)
    assert gpu.effective_tflops("fp16") == gpu.effective_tflops("bf16")
    with pytest.raises(ImpossibleSetting, match="bf16, int8, int4"):
        gpu.effective_tflops("fp32")


def test_names_are_found_in_any_case_and_files_by_path(tmp_path: Path) -> None:
    named = load_machine("H200-EMR16")
    assert named == load_machine(edited(tmp_path, "name = ", "name = "))
    assert isinstance(named.cpu.cores, int)
    assert hash(named) == hash(load_machine("h200-emr16"))


def test_a_machine_may_state_more_precisions(tmp_path: Path) -> None:
    extra = '[gpu.matmul_tflops]\nfp32 = { value = 67.0, source = "datasheet" }'
    machine = load_machine(edited(tmp_path, "[gpu.matmul_tflops]", extra))
    assert machine.gpu.matmul_tflops["fp32"] == 67.0
    assert machine.sources["gpu.matmul_tflops.fp32"] == "datasheet"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("latency_us =", "latency =", "pcie.latency"),
        ("latency_us = {", "# {", "pcie.latency_us"),
        ("value = 4800.0", "value = -1.0", "gpu.memory_bandwidth_gb_s"),
        ("value = 4800.0", "value = 0", "gpu.memory_bandwidth_gb_s"),
        ("value = 4800.0", "value = nan", "gpu.memory_bandwidth_gb_s"),
        ("value = 4800.0", "value = inf", "gpu.memory_bandwidth_gb_s"),
        ("value = 4800.0", 'value = "fast"', "gpu.memory_bandwidth_gb_s"),
        ("value = 4800.0", "value = true", "gpu.memory_bandwidth_gb_s"),
        ("value = 0.85", "value = 1.01", "gpu.bandwidth_efficiency"),
        ("value = 0.59", "value = 0.0", "cpu.matmul_efficiency"),
        ("value = 16,", "value = 16.5,", "cpu.cores"),
        ("value = 4.8,", "value = -4.8,", "cpu.first_expert_us"),
        ("value = 16.0,", "value = -16.0,", "cpu.matmul_tflops.bf16"),
        ("int4 = {", "int3 = {", "gpu.matmul_tflops.int3"),
        ("int4 = {", "# {", "gpu.matmul_tflops.int4"),
        ("[gpu.matmul_tflops]", "[gpu.rates]", "gpu.rates"),
        ("[pcie]", "[nvlink]", "nvlink"),
        ("[planner]", "# [planner]", "pcie.fixed_us"),
        ('title = "H200', 'titel = "H200', "titel"),
        ('name = "NVIDIA H200 141GB"', 'name = ""', "gpu.name"),
        ("notes = [", "notes = [ 1, ", "notes"),
        (', source = "NVIDIA H200 datasheet"', "", "gpu.memory_gb.source"),
        ('source = "NVIDIA H200 datasheet"', 'source = " "', "gpu.memory_gb.source"),
        ('{ value = 141.0, source = "NVIDIA H200 datasheet" }', "141.0", "gpu.memory_gb"),
        ("value = 141.0", "value = 141.0, unit = 3", "gpu.memory_gb.unit"),
        ("[gpu]", "[gpu", "file"),
    ],
)
def test_a_bad_description_is_refused_by_field(
    tmp_path: Path, old: str, new: str, field: str
) -> None:
    path = edited(tmp_path, old, new)
    with pytest.raises(BadMachine, match="expected") as caught:
        load_machine(path)
    assert caught.value.field == field
    assert path in str(caught.value)


def test_a_missing_section_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD[: GOOD.index("[planner]")])
    with pytest.raises(BadMachine, match="planner"):
        load_machine(str(path))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadMachine, match="expected TOML"):
        load_machine(str(path))


def test_unknown_names_and_paths() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'h200-emr16'"):
        load_machine("h200-emr")
    with pytest.raises(BadMachine, match="there is none here"):
        load_machine("absent.toml")


def test_a_changed_machine_is_checked_too() -> None:
    pcie = load_machine("h200-emr16").pcie
    assert replace(pcie, bandwidth_gb_s=108.0).bandwidth_gb_s == 108.0
    with pytest.raises(ImpossibleSetting, match=r"LinkSpec\.bandwidth_gb_s"):
        replace(pcie, bandwidth_gb_s=0.0)
