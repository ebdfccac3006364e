"""An invented machine whose main memory is four DIMMs that compute, on two channels.

For an expert of `small_model` (60 kB): 10 us for the CPU from stripes (5 us of every DIMM's time),
20 us from one DIMM; 30 us over PCIe; 2 us for a unit to read, 1.5 us per token to multiply, two
tokens at a time; 240 us from one DIMM to another over its link."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from made_up import small_machine
from moesaic.hardware.dimms import DimmLinkSpec, DimmsSpec, NdpSpec
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.parts import LinkSpec

UNIT = NdpSpec(
    name="a unit",
    count=4,
    memory_bandwidth_gb_s=60.0,
    bandwidth_efficiency=0.5,
    multipliers=40,
    values_per_multiplier=8,
    cycles_per_product=16.0,
    clock_ghz=1.0,
    matmul_efficiency=1.0,
    buffer_kib=0.8,
    activation_units=100,
    activation_cycles=1.0,
    expert_overhead_us=1.0,
    first_expert_us=3.0,
)
DIMMS = DimmsSpec(4, 2, 1e-3, 6.0, 0.5, "own-share", "none")
LINK = DimmLinkSpec(0.25, 1, 0.0, "per-dimm")
STRIPED = "striped@dimm0+dimm1+dimm2+dimm3"


def dimm_machine(pcie_gb_s: float = 2.0, topology: str = "per-dimm", **dimms: Any) -> MachineSpec:
    """CPU and PCIe share nothing, unless `sharing` says so."""
    machine = small_machine()
    cpu = replace(
        machine.cpu,
        memory_bandwidth_gb_s=12.0,
        bandwidth_efficiency=0.5,
        expert_overhead_us=0.0,
        first_expert_us=0.0,
    )
    return replace(
        machine,
        cpu=cpu,
        pcie=LinkSpec(pcie_gb_s, 0.0),
        dimms=replace(DIMMS, **dimms),
        ndp=UNIT,
        dimm_link=replace(LINK, topology=topology),
    )
