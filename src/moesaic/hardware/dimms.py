"""Main memory as DIMMs on channels, compute units in them, and the links between them.

Three sections of a description; `dimm_parts.py` makes devices, memories and links of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from moesaic.hardware.numbers import Checked, Count, Fraction, NotNegative, Positive, Rates, Whole
from moesaic.hardware.processors import DeviceSpec

FULL, OWN_SHARE, NO_CONTENTION = "full", "own-share", "none"
CONTENTION = {
    FULL: "a host read occupies every DIMM it touches for its whole DRAM time",
    OWN_SHARE: "a host read occupies a DIMM while that DIMM's own bytes are on its channel",
    NO_CONTENTION: "host reads do not disturb the NDP units",
}
PCIE_FIRST, PROPORTIONAL, UNSHARED = "pcie-first", "proportional", "none"
SHARING = {
    PCIE_FIRST: "PCIe copies are served first, the CPU has what is left",
    PROPORTIONAL: "beyond a channel's bandwidth all are slowed alike",
    UNSHARED: "CPU and PCIe have the whole bandwidth each",
}
PER_DIMM, RING, BUS = "per-dimm", "ring", "bus"
LINK_TOPOLOGIES = {
    PER_DIMM: "every DIMM has ports of its own, each transfer takes one out and one in",
    RING: "links between neighbours, both ways; a transfer takes all on the shorter way",
    BUS: "one link that all DIMMs share",
}


@dataclass(frozen=True, slots=True)
class DimmsSpec(Checked):
    """Main memory: `count` DIMMs, evenly over `channels`; DIMM i is on channel i mod channels.
    With `split` experts can also lie divided over groups of so many neighbours."""

    count: Count
    channels: Count
    memory_gb: Positive  # of one DIMM, 10^9 bytes
    channel_gb_s: Positive  # peak of one channel
    channel_efficiency: Fraction  # of the peak, reached by streaming
    contention: str = OWN_SHARE
    sharing: str = PCIE_FIRST
    split: Count = 1

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Placement -> the DIMMs a split expert lies in."""
        if self.split == 1:
            return {}
        every = range(0, self.count, self.split)
        return {
            f"split{at}": self.names[first : first + self.split] for at, first in enumerate(every)
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"dimm{at}" for at in range(self.count))

    @property
    def host_gb_s(self) -> float:
        """What the host reaches over one channel, and so from one DIMM."""
        return self.channel_gb_s * self.channel_efficiency

    def channel_of(self, dimm: int) -> int:
        return dimm % self.channels


@dataclass(frozen=True, slots=True)
class NdpSpec(Checked):
    """The compute unit of a DIMM, in its buffer chip; the first `count` DIMMs have one."""

    name: str
    count: Whole
    memory_bandwidth_gb_s: Positive  # all ranks of the DIMM at once, peak
    bandwidth_efficiency: Fraction
    multipliers: Count
    values_per_multiplier: Count  # weights that one multiplier works on at a time
    cycles_per_product: Positive  # bit-serial: the bits of a weight
    clock_ghz: Positive
    matmul_efficiency: Fraction
    buffer_kib: Positive  # activations and intermediate results
    activation_units: Count
    activation_cycles: Positive  # per intermediate value
    expert_overhead_us: NotNegative
    first_expert_us: NotNegative
    integer_tflops: Rates = field(default_factory=dict, hash=False)  # int8, int4; none: it cannot

    @property
    def tflops(self) -> float:
        """A multiplication and an addition per value."""
        per_round = 2 * self.multipliers * self.values_per_multiplier
        return per_round / self.cycles_per_product * self.clock_ghz / 1000

    @property
    def internal_gb_s(self) -> float:
        return self.memory_bandwidth_gb_s * self.bandwidth_efficiency


@dataclass(frozen=True, slots=True)
class DimmLinkSpec(Checked):
    """Transfers between DIMMs without the host. `links` are those of one DIMM (of a ring: per
    neighbour and direction; of a bus: of the bus), each `bandwidth_gb_s` in either direction."""

    bandwidth_gb_s: Positive
    links: Count
    latency_us: NotNegative  # per transfer
    topology: str = PER_DIMM

    @property
    def port_gb_s(self) -> float:
        return self.bandwidth_gb_s * self.links


@dataclass(frozen=True, slots=True)
class NdpDevice(DeviceSpec):
    """One DIMM's unit as a device of the machine."""

    unit: NdpSpec = field(kw_only=True)
