"""Are DIMMs, their compute units and links read, written, and refused with the field and why?"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest

from moesaic.core.errors import BadMachine, ImpossibleSetting
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_writer import machine_toml
from moesaic.lab.simulate.settings import Settings
from moesaic.model_info.model_zoo import load_model

PAPER = (files("moesaic.hardware") / "data" / "trimoe-paper.toml").read_text()


def described(old: str, new: str) -> MachineSpec:
    assert old in PAPER
    return parse_machine(PAPER.replace(old, new, 1).encode(), "mine.toml")


def test_the_papers_machine_has_the_papers_shape() -> None:
    machine = load_machine("trimoe-paper")
    topology = machine.topology()
    units, dimms = [f"ndp{at}" for at in range(16)], [f"dimm{at}" for at in range(16)]
    assert [device.name for device in topology.devices] == ["gpu", "cpu", *units]
    assert [memory.name for memory in topology.memories] == ["vram", *dimms]
    assert [placement.name for placement in topology.placements] == [
        "whole@vram",
        f"striped@{'+'.join(dimms)}",
        *(f"whole@{dimm}" for dimm in dimms),
    ]
    assert topology.units == 16, "a stripe is a sixteenth"
    every = range(len(topology.placements))
    assert all(topology.route(p, 0) for p in every if p), "PCIe loads from any layout"
    assert topology.reads[topology.device("ndp3")] == (topology.placement("whole@dimm3"),)
    assert set(topology.reads[topology.device("cpu")]) == set(every) - {0}
    assert machine.host_memory_gb == 2048.0


def test_bandwidths_are_the_papers() -> None:
    """Table 1: 307.2 GB/s for the host, 153.6 in every DIMM, eight times as much in all."""
    machine = load_machine("trimoe-paper")
    assert machine.dimms is not None
    assert machine.ndp is not None
    assert machine.dimms.channels * machine.dimms.channel_gb_s == pytest.approx(307.2)
    assert machine.ndp.memory_bandwidth_gb_s * machine.ndp.count == pytest.approx(8 * 307.2)
    one = machine.processor("cpu").reads_gb_s["dimm7"]
    assert one == pytest.approx(machine.dimms.host_gb_s)


@pytest.mark.parametrize("name", ["trimoe-paper", "h200-emr16-ndp"])
def test_what_is_read_is_written_again(name: str) -> None:
    machine = load_machine(name)
    assert parse_machine(machine_toml(machine).encode(), "written") == machine
    assert 'contention = "own-share"' in machine_toml(machine)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (
            'count = { value = 16, source = "TriMoE, Table',
            'count = { value = 12, source = "T',
            "dimms.count",
        ),
        ("channels = { value = 8", "channels = { value = 0", "dimms.channels"),
        ("channels = { value = 8", "channels = { value = 4", "cpu.memory_bandwidth_gb_s"),
        ("channel_gb_s = { value = 38.4", "channel_gb_s = { value = -38.4", "dimms.channel_gb_s"),
        ('contention = "own-share"', 'contention = "half"', "dimms.contention"),
        ('sharing = "pcie-first"', 'sharing = "fair"', "dimms.sharing"),
        ('topology = "per-dimm"', 'topology = "torus"', "dimm_link.topology"),
        (
            'count = { value = 16, source = "TriMoE, sec',
            'count = { value = 17, source = "T',
            "ndp.count",
        ),
        ("value = 153.6", "value = -153.6", "ndp.memory_bandwidth_gb_s"),
        (
            "bandwidth_gb_s = { value = 25.0",
            "bandwidth_gb_s = { value = 0",
            "dimm_link.bandwidth_gb_s",
        ),
        ("links = { value = 2", "links = { value = 1.5", "dimm_link.links"),
        ("buffer_kib", "buffer_kb", "ndp.buffer_kb"),
        (
            "clock_ghz = { value = 1.0, source",
            "clock_ghz = { value = 1.0, from",
            "ndp.clock_ghz.from",
        ),
        ("[dimms]", "[dimm]", "dimm"),
    ],
)
def test_a_machine_that_cannot_exist_is_refused_by_field(old: str, new: str, field: str) -> None:
    with pytest.raises(BadMachine, match="expected") as caught:
        described(old, new)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("[memories.dimm3]\nmemory_gb = { value = 1.0, source = 'x' }", "memories.dimm3"),
        ("[placements.dram]\nmemories = ['dimm0', 'dimm1']", "placements.dram"),
    ],
)
def test_names_of_the_dimms_are_taken(more: str, field: str) -> None:
    with pytest.raises(BadMachine, match="the DIMMs") as caught:
        parse_machine(f"{PAPER}\n{more}".encode(), "mine.toml")
    assert caught.value.field == field


def test_units_and_links_need_dimms() -> None:
    machine = load_machine("trimoe-paper")
    with pytest.raises(ImpossibleSetting, match=r"ndp: expected a section \[dimms\]"):
        replace(machine, dimms=None, dimm_link=None)
    with pytest.raises(ImpossibleSetting, match=r"dimm_link: expected a section \[dimms\]"):
        replace(machine, dimms=None, ndp=None)


@pytest.mark.parametrize("units", [0, 4, 16])
def test_any_number_of_dimms_may_compute(units: int) -> None:
    machine = load_machine("trimoe-paper")
    assert machine.ndp is not None
    fewer = replace(machine, ndp=replace(machine.ndp, count=units))
    devices = [device.name for device in fewer.topology().devices]
    assert devices == ["gpu", "cpu", *(f"ndp{at}" for at in range(units))]
    assert len(fewer.topology().memories) == 17


def test_experts_that_do_not_fit_are_refused() -> None:
    """94 x 128 experts of 37.7 MB are 454 GB; 16 DIMMs of 28 GB hold 742 each, 11,872 of 12,032."""
    machine, model = load_machine("trimoe-paper"), load_model("qwen3-235b-a22b")
    assert machine.dimms is not None
    Settings(model, machine, cache_ratio=0.02)
    small = replace(machine, dimms=replace(machine.dimms, memory_gb=28.0))
    with pytest.raises(ImpossibleSetting, match=r"take 454.2 GB in bf16; trimoe-paper has 448 GB"):
        Settings(model, small, cache_ratio=0.02)


def test_the_reference_machine_with_units_is_the_reference_machine_elsewhere() -> None:
    """A number measured anew must not be brought into one of the two only."""
    plain, with_units = load_machine("h200-emr16"), load_machine("h200-emr16-ndp")
    for part in ("gpu", "cpu", "pcie", "planner"):
        assert getattr(plain, part) == getattr(with_units, part), part
    sources = {name: text for name, text in with_units.sources.items() if name in plain.sources}
    elsewhere = {name: plain.sources[name] for name in sources if not name.startswith("resources")}
    assert elsewhere.items() <= sources.items()
