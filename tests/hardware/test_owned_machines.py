"""Are the machines that people own described as their datasheets have it: memory by channels and
transfers, links by their generation, and one memory where there is one?"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_groups import GROUPS, OWN, expanded_groups
from moesaic.hardware.machine_reader import known_machines, load_machine
from moesaic.hardware.machine_spec import MachineSpec, UnifiedSpec
from moesaic.hardware.machine_topology import BadReference
from moesaic.lab.simulate.settings import Settings
from moesaic.model_info.model_zoo import load_model

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
