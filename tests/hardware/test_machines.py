"""Are machine descriptions complete and plausible, and is a bad one refused with a reason?"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from moesaic.core.errors import BadMachine, ImpossibleSetting, UnknownName
from moesaic.hardware.machine_groups import GROUPS, OWN, expanded_groups
from moesaic.hardware.machine_reader import known_machines, load_machine
from moesaic.hardware.machine_spec import MachineSpec, UnifiedSpec
from moesaic.hardware.machine_topology import BadReference
from moesaic.lab.simulate.settings import Settings
from moesaic.model_info.model_zoo import load_model

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


# Are the machines that people own described as their datasheets have it: memory by channels and
# transfers, links by their generation, and one memory where there is one?

# GDDR: bus width in bits and Gbit/s per pin. DRAM: channels of 8 bytes and MT/s.
GRAPHICS = {
    "rtx5070-r7-9700x": (192, 28.0),
    "rtx3090-r9-5950x": (384, 19.5),
    "rtx4090-i9-13900k": (384, 21.0),
    "rtx5090-r9-9950x": (512, 28.0),
    "rtx4090-2x6454s": (384, 21.0),
}
CHANNELS = {
    "rtx5070-r7-9700x": (2, 5600),
    "rtx3090-r9-5950x": (2, 3200),
    "rtx4090-i9-13900k": (2, 5600),
    "rtx5090-r9-9950x": (2, 6000),
    "rtx4090-2x6454s": (16, 4800),
}
# Raw GB/s in one direction of 16 lanes, 128 of 130 bits.
PCIE_GB_S = {generation: 16 * gt_s * 128 / 130 / 8 for generation, gt_s in ((4, 16), (5, 32))}


def test_the_group_names_known_machines_once() -> None:
    assert len(set(OWN)) == len(OWN) == 7
    assert set(OWN) <= set(known_machines())
    assert not set(GROUPS) & set(known_machines())
    assert expanded_groups(["h200-emr16", "OWN", OWN[0]]) == ["h200-emr16", *OWN]


def test_names_titles_and_comments_are_their_own() -> None:
    specs = [load_machine(name) for name in known_machines()]
    for texts in zip(*((spec.name, spec.title, spec.description) for spec in specs), strict=True):
        assert len(set(texts)) == len(specs)


@pytest.mark.parametrize("name", GRAPHICS)
def test_graphics_memory_is_as_wide_and_fast_as_its_datasheet(name: str) -> None:
    bits, gbit_s = GRAPHICS[name]
    assert load_machine(name).gpu.memory_bandwidth_gb_s == pytest.approx(bits * gbit_s / 8)


@pytest.mark.parametrize("name", CHANNELS)
def test_main_memory_is_not_faster_than_its_channels(name: str) -> None:
    channels, mt_s = CHANNELS[name]
    spec, peak = load_machine(name), channels * 8 * mt_s / 1000
    dram = spec.resources["dram"]
    assert spec.cpu.memory_bandwidth_gb_s <= peak
    assert dram.bandwidth_gb_s == pytest.approx(0.85 * peak, rel=1e-3)
    assert spec.cpu.effective_bandwidth_gb_s < dram.bandwidth_gb_s


@pytest.mark.parametrize("name", [name for name in OWN if "rtx" in name])
def test_copies_reach_a_share_of_their_pcie_generation(name: str) -> None:
    spec = load_machine(name)
    (generation,) = re.findall(r"PCIe (\d)\.0 x16, ", spec.sources["pcie.bandwidth_gb_s"])
    share = spec.pcie.bandwidth_gb_s / PCIE_GB_S[int(generation)]
    assert 0.8 < share < 0.92
    newer = "5090" in name or "5070" in name
    assert int(generation) == (5 if newer else 4)


@pytest.mark.parametrize("name", OWN)
def test_what_is_shared_is_what_each_reads_alone(name: str) -> None:
    """A processor beside which nothing is read is as fast as described; both together are not."""
    spec = load_machine(name)
    (resource,) = spec.resources.values()
    assert resource.draws_gb_s["cpu"] == pytest.approx(spec.cpu.effective_bandwidth_gb_s, abs=0.1)
    copies = spec.pcie.bandwidth_gb_s * (1 if spec.unified is None else 2)  # read and written
    assert resource.draws_gb_s["pcie"] == pytest.approx(copies)
    assert max(resource.draws_gb_s.values()) <= resource.bandwidth_gb_s
    both = resource.draws_gb_s["cpu"] + resource.draws_gb_s["pcie"]
    assert (both > resource.bandwidth_gb_s) == (name != "rtx4090-2x6454s")


@pytest.mark.parametrize("name", OWN)
def test_efficiencies_say_whether_they_are_assumed(name: str) -> None:
    """A share of a peak names who measured it, or is an assumption."""
    spec = load_machine(name)
    shares = {key: text for key, text in spec.sources.items() if key.endswith("_efficiency")}
    assert len(shares) == 4
    for text in shares.values():
        named = ("assumption:", "derived:", "STREAM reaches", "KTransformers", "llama.cpp")
        assert text.startswith(named)
    assert any("Nothing here was measured by this project" in note for note in spec.notes)


def spark(model: str, dtype: str = "int4", ratio: float = 1.0) -> Settings:
    machine = load_machine("dgx-spark")
    return Settings(
        load_model(model), machine, cache_ratio=ratio, expert_dtype=dtype, dense_dtype=dtype
    )


def test_one_memory_holds_every_expert_once_for_both() -> None:
    whole = spark("qwen3-30b-a3b", "bf16")
    assert whole.slots == whole.model.num_expert_blocks
    with pytest.raises(ImpossibleSetting, match=r"one memory.*leave the cache ratio out, or use 1"):
        spark("qwen3-30b-a3b", ratio=0.25)
    with pytest.raises(ImpossibleSetting, match=r"takes 4\d\d\.\d GB .* 128 GB for GPU and CPU"):
        spark("qwen3-235b-a22b", "bf16")


def test_one_memory_is_at_least_as_large_as_each_part() -> None:
    machine = load_machine("dgx-spark")
    gpu: MachineSpec = replace(machine, gpu=replace(machine.gpu, memory_gb=64.0))
    assert gpu.unified == UnifiedSpec(128.0)
    with pytest.raises(BadReference, match=r"gpu\.memory_gb: expected at most the 64 GB"):
        replace(machine, unified=UnifiedSpec(64.0))
