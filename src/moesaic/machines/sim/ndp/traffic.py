"""What moves and experts occupy on a machine whose main memory is DIMMs: for how long each
channel, each DIMM and each link between DIMMs is busy with one of them.

A task that occupies a resource for half of its own duration draws half of it while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from moesaic.core.offloading import CPU, PCIE
from moesaic.core.units import GB, NS_PER_S, ns_from_us
from moesaic.hardware.dimm_parts import DIMM_LINK
from moesaic.hardware.dimms import (
    BUS,
    FULL,
    NO_CONTENTION,
    PER_DIMM,
    UNSHARED,
    DimmLinkSpec,
    DimmsSpec,
    NdpDevice,
)
from moesaic.hardware.machine_spec import MachineSpec

Busy = Mapping[str, float]  # resource -> nanoseconds


class Carried(NamedTuple):
    """A part of a moving expert on one link."""

    ns: int
    busy: Busy


@dataclass(frozen=True)
class Traffic:
    """The traffic of one expert size on one machine."""

    machine: MachineSpec
    expert_bytes: int

    @property
    def dimms(self) -> DimmsSpec:
        assert self.machine.dimms is not None
        return self.machine.dimms

    def host_read(self, placement: str, parts: Fraction = Fraction(1)) -> dict[str, float]:
        """The channels' and DIMMs' time for an expert (or a part) that the host reads there."""
        touched = self._dimms_of(placement)
        if not touched:
            return {}
        dimms, each = self.dimms, self._ns(parts / len(touched), self.dimms.host_gb_s)
        channels: dict[str, float] = {}
        for dimm in touched:
            name = f"channel{dimms.channel_of(dimm)}"
            channels[name] = channels.get(name, 0.0) + each
        busy = {} if dimms.sharing == UNSHARED else dict(channels)
        if dimms.contention != NO_CONTENTION:
            own = max(channels.values()) if dimms.contention == FULL else each
            busy |= {f"dimm{dimm}": own for dimm in touched}
        return busy

    def expert(self, device: str, placement: str, parts: Fraction, ns: int, act: int) -> Busy:
        """An expert that takes `ns`, with `act` bytes of activations over an NDP unit's channel. A
        unit has its DIMM for as long as it computes (TriMoE, equation 6)."""
        if device == CPU:
            return self.host_read(placement, parts)
        if not isinstance(self.machine.flat.devices.get(device), NdpDevice):
            return {}
        topology = self.machine.topology()
        own = topology.devices[topology.device_index[device]].memory
        assert own is not None, "a unit is in a DIMM"
        dimm = _number(own)
        busy = {f"dimm{dimm}": float(ns)}
        if self.dimms.sharing != UNSHARED:
            rate = self.dimms.host_gb_s * GB
            busy[f"channel{self.dimms.channel_of(dimm)}"] = act / rate * NS_PER_S
        return busy

    def move(self, link: str, source: str, share: Fraction) -> Carried | None:
        """What of an expert's move goes over one link; None: the link is none of these."""
        if link == PCIE:
            return self._over_pcie(source, share)
        if link.startswith(DIMM_LINK) and self.machine.dimm_link is not None:
            start, end = map(int, link.removeprefix(DIMM_LINK).split("-"))
            return self._between_dimms(self.machine.dimm_link, start, end, share)
        return None

    def _over_pcie(self, source: str, share: Fraction) -> Carried:
        """A transfer as slow as the link or the channels that feed it."""
        pcie = self.machine.pcie
        touched = self._dimms_of(source)
        dimms = self.dimms
        used = len({dimms.channel_of(dimm) for dimm in touched}) or dimms.channels
        rate = min(pcie.bandwidth_gb_s, used * dimms.host_gb_s)
        ns = ns_from_us(pcie.latency_us) + round(self._ns(share, rate))
        return Carried(ns, self.host_read(source, share))

    def _between_dimms(self, link: DimmLinkSpec, start: int, end: int, share: Fraction) -> Carried:
        """What it takes on the way, and of DRAM at both ends."""
        way, ends = self._ns(share, link.port_gb_s), self._ns(share, self._internal_gb_s)
        busy = dict.fromkeys(_on_the_way(link, self.dimms.count, start, end), way)
        busy |= {f"dimm{start}": ends, f"dimm{end}": ends}
        return Carried(ns_from_us(link.latency_us) + round(max(way, ends)), busy)

    @property
    def _internal_gb_s(self) -> float:
        """All ranks at once, where a unit can read so; else as the channel reads."""
        ndp = self.machine.ndp
        return self.dimms.host_gb_s if ndp is None else ndp.internal_gb_s

    def _dimms_of(self, placement: str) -> list[int]:
        topology = self.machine.topology()
        names = topology.placements[topology.placement(placement)].memories
        mine = set(self.dimms.names)
        return [_number(name) for name in names if name in mine]

    def _ns(self, share: Fraction, gb_s: float) -> float:
        return float(self.expert_bytes * share) / (gb_s * GB) * NS_PER_S


def resource_names(machine: MachineSpec) -> list[str]:
    """Everything that tasks of such a machine may occupy."""
    dimms, link = machine.dimms, machine.dimm_link
    if dimms is None:
        return []
    names = [*(f"channel{at}" for at in range(dimms.channels)), *dimms.names]
    if link is not None:
        every = range(dimms.count)
        ends = ((start, end) for start in every for end in every if start != end)
        ways = (_on_the_way(link, dimms.count, *pair) for pair in ends)
        names += dict.fromkeys(name for way in ways for name in way)
    return names


def _on_the_way(link: DimmLinkSpec, dimms: int, start: int, end: int) -> list[str]:
    """What a transfer takes on its way."""
    if link.topology == BUS:
        return ["dimm-bus"]
    if link.topology == PER_DIMM:
        return [f"link-out{start}", f"link-in{end}"]
    right = (end - start) % dimms
    if right <= dimms - right:
        return [f"ring-right{(start + step) % dimms}" for step in range(right)]
    return [f"ring-left{(start - step) % dimms}" for step in range(dimms - right)]


def _number(name: str) -> int:
    return int(name.removeprefix("dimm"))
