"""Are further devices, memories, links and resources read, written, and refused with a reason?"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest

from moesaic.core.errors import BadMachine, ImpossibleSetting
from moesaic.core.report import Timeline
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_writer import machine_toml
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Task
from moesaic.machines.sim.wiring import lanes_of
from more_devices import with_a_dimm, with_four_dimms

REFERENCE = (files("moesaic.hardware") / "data" / "h200-emr16.toml").read_text()
MORE = """
[devices.ndp]
name = "a DIMM that computes"
memory_bandwidth_gb_s = { value = 153.6, source = "datasheet" }
bandwidth_efficiency = { value = 0.8, source = "assumption" }
matmul_efficiency = { value = 0.9, source = "assumption" }
expert_overhead_us = { value = 1.0, source = "assumption" }
first_expert_us = { value = 2.0, source = "assumption" }

[devices.ndp.matmul_tflops]
bf16 = { value = 0.256, source = "datasheet" }

[devices.ndp.reads_gb_s]
dram = { value = 20.0, source = "over the bus" }

[memories.dimm]
owner = "ndp"
memory_gb = { value = 128.0, source = "datasheet" }

[links.dimm-link]
source = ["dram", "vram"]
destination = "dimm"
bandwidth_gb_s = { value = 25.0, source = "datasheet" }
latency_us = { value = 1.0, source = "assumption" }

[resources.channel]
rule = "proportional"
bandwidth_gb_s = { value = 38.4, source = "datasheet" }

[resources.channel.draws_gb_s]
dimm-link = { value = 25.0, source = "as fast as it is" }
ndp = { value = 10.0, source = "assumption" }
"""


def described(old: str = "", new: str = "") -> MachineSpec:
    assert old in MORE
    text = REFERENCE + MORE.replace(old, new, 1) if old else REFERENCE + MORE
    return parse_machine(text.encode(), "mine.toml")


def test_a_description_gives_a_topology() -> None:
    machine = described()
    topology = machine.topology()
    assert topology.lanes == ("gpu", "cpu", "ndp", "pcie", "dimm-link")
    assert [m.owner for m in topology.memories] == ["gpu", "cpu", "ndp"]
    assert topology.memories[2].capacity_bytes == 128_000_000_000
    assert topology.links[1].source == ("dram", "vram")
    reads = [topology.placements[p].name for p in topology.reads[2]]
    assert reads == ["whole@dimm", "whole@dram"]
    assert machine.sources["devices.ndp.reads_gb_s.dram"] == "over the bus"
    assert machine.values()["resources.channel.draws_gb_s.ndp"] == 10.0
    assert machine.processor("ndp").effective_tflops("bf16") == pytest.approx(0.9 * 0.256)
    assert machine.link("dimm-link").latency_us == 1.0


def test_what_is_read_is_written_again() -> None:
    machine = described()
    text = machine_toml(machine)
    assert parse_machine(text.encode(), "written") == machine
    assert 'source = ["dram", "vram"]\ndestination = "dimm"' in text


@pytest.mark.parametrize("spec", [with_a_dimm(), with_four_dimms()], ids=["one", "four"])
def test_other_machines_are_written_and_read_back(spec: MachineSpec) -> None:
    rates = dict.fromkeys(("bf16", "int8", "int4"), 1.0)
    spec = replace(
        spec,
        gpu=replace(spec.gpu, matmul_tflops=rates),
        cpu=replace(spec.cpu, matmul_tflops=rates),
    )
    spec = replace(spec, sources=dict.fromkeys(spec.values(), "invented"))
    assert parse_machine(machine_toml(spec).encode(), "written") == spec


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('owner = "ndp"', 'owner = "dpu"', "memories.dimm.owner"),
        ('owner = "ndp"', "owner = 3", "memories.dimm.owner"),
        ('destination = "dimm"', 'destination = "cxl"', "links.dimm-link.destination"),
        ('destination = "dimm"', "destination = [3]", "links.dimm-link.destination"),
        ('destination = "dimm"', "", "links.dimm-link.destination"),
        ('["dram", "vram"]', '["dram", "hbm"]', "links.dimm-link.source"),
        ("dram = { value = 20.0", "hbm = { value = 20.0", "devices.ndp.reads_gb_s.hbm"),
        ("dram = { value = 20.0", "dram = { value = -20.0", "devices.ndp.reads_gb_s.dram"),
        ("[devices.ndp.reads_gb_s]", "[devices.ndp.reads]", "devices.ndp.reads"),
        ('rule = "proportional"', 'rule = "fair"', "resources.channel.rule"),
        ('rule = "proportional"', 'rule = "priority"', "resources.channel.first"),
        (
            'rule = "proportional"',
            'rule = "proportional"\nfirst = "ndp"',
            "resources.channel.first",
        ),
        ('rule = "proportional"', 'rule = "priority"\nfirst = "gpu"', "resources.channel.first"),
        ("ndp = { value = 10.0", "npu = { value = 10.0", "resources.channel.draws_gb_s.npu"),
        ("[memories.dimm]", "[memories.dram]", "memories.dram"),
        ("[links.dimm-link]", "[links.pcie]", "links.pcie"),
        ("[links.dimm-link]", "[links.ndp]", "devices.ndp"),
        ("[links.dimm-link]", '[links."my link"]', "links.my link"),
        ("bf16 = {", "int3 = {", "devices.ndp.matmul_tflops.int3"),
        ('bf16 = { value = 0.256, source = "datasheet" }', "", "devices.ndp.matmul_tflops"),
        ("first_expert_us", "first_us", "devices.ndp.first_us"),
        (', source = "over the bus"', "", "devices.ndp.reads_gb_s.dram.source"),
    ],
)
def test_a_bad_description_is_refused_by_field(old: str, new: str, field: str) -> None:
    with pytest.raises(BadMachine, match="expected") as caught:
        described(old, new)
    assert caught.value.field == field


def test_a_changed_machine_is_checked_too() -> None:
    machine = described()
    stolen = replace(machine.memories["dimm"], owner="gpu")
    with pytest.raises(ImpossibleSetting, match=r"memories\.dimm\.owner: expected one of ndp"):
        replace(machine, memories={"dimm": stolen})


def test_where_stripes_are_main_memory_cpu_and_link_read_them() -> None:
    """Nothing is the experts' home then: they lie where they are placed."""
    topology = with_four_dimms().topology()
    assert "dram" not in topology.memory_index
    assert topology.devices[1].memory is None
    assert topology.placements[topology.reads[1][0]].layout == "striped"
    assert topology.links[0].source == ("dimm0", "dimm1", "dimm2", "dimm3")


def test_the_reference_machine_reads_and_copies_at_once_as_measured() -> None:
    """84 GB/s are left during a copy at 50 GB/s, and the copy is not slowed."""
    machine = load_machine("h200-emr16")
    slower = replace(machine.resources["dram"], draws_gb_s={"cpu": 110.5, "pcie": 50.0})
    machine = replace(machine, resources={"dram": slower})
    clock = Clock()
    lanes = lanes_of(machine, machine.topology(), clock, Timeline())
    read, copy = Task("expert", 1_000_000), Task("transfer", 10_000_000)
    lanes["cpu"].submit(read)
    lanes["pcie"].submit(copy)
    while not copy.done:
        clock.step()
    assert copy.end_ns == 10_000_000
    assert 110.5 * 1_000_000 / read.end_ns == pytest.approx(84, rel=2e-3)
