"""What tasks of a machine with DIMMs draw on: channels, DIMMs, links between DIMMs as resources of
the simulator, and shares of them from the time that a task occupies each.

Host reads are never delayed by a DIMM's unit, which has what they leave of its DIMM; so a unit's
work and the reads on its DIMM take as long as both together (TriMoE, equation 6). Where CPU and
PCIe share bandwidth, it is that of channels; a DIMM delays neither. Activations are served before
the CPU where copies are: a unit that needs a channel for a little of its time is not delayed for
all of it by the CPU's reads."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from moesaic.core.layer_plan import PARTS
from moesaic.core.offloading import CPU, IN_DRAM, PCIE
from moesaic.hardware.dimms import PCIE_FIRST, NdpDevice
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Draws
from moesaic.machines.sim.ndp.dimm_time import DimmTime
from moesaic.machines.sim.ndp.traffic import Busy, Traffic, resource_names
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.resources import PriorityResource, Resource

MILLION = 1_000_000  # shares are counted in millionths: an activation takes little of a channel


class DimmDraws:
    """Durations and draws of one model's experts and moves."""

    def __init__(self, physics: Physics, clock: Clock) -> None:
        self.traffic = Traffic(physics.machine, physics.expert_bytes)
        self.resources = _resources(physics.machine, clock)
        self._physics = physics

    def expert(self, device: str, placement: str, tokens: int, parts: int, ns: int) -> Draws:
        """The draws of an expert, or a part of one, that takes `ns` from that placement."""
        carried = self._physics.channel_bytes(tokens)
        busy = self.traffic.expert(device, placement, Fraction(parts, PARTS), ns, carried)
        return self._draws(busy, ns)

    def move(self, link: str, source: str, share: Fraction) -> tuple[int, Draws] | None:
        """Time and draws of what a link carries of a moving expert; None: not of these links."""
        carried = self.traffic.move(link, source, share)
        return None if carried is None else (carried.ns, self._draws(carried.busy, carried.ns))

    def stream(self, device: str, size: int, ns: int) -> Draws:
        """The draws of so many bytes out of all DIMMs, read by a device in `ns`."""
        return self._draws(self.traffic.expert(device, self._striped, self._share(size), ns, 0), ns)

    def stream_over_pcie(self, size: int) -> tuple[int, Draws]:
        found = self.move(PCIE, self._striped, self._share(size))
        assert found is not None, "PCIe reads DIMMs"
        return found

    @property
    def _striped(self) -> str:
        return self._physics.topology.placements[IN_DRAM].name

    def _share(self, size: int) -> Fraction:
        return Fraction(size, self._physics.expert_bytes)

    def _draws(self, busy: Busy, ns: int) -> Draws:
        shares = {name: round(each / max(ns, 1) * MILLION) for name, each in busy.items()}
        return tuple((self.resources[name], share) for name, share in shares.items() if share)


def _resources(machine: MachineSpec, clock: Clock) -> Mapping[str, Resource]:
    dimms = machine.dimms
    assert dimms is not None
    flat = machine.flat.devices
    units = [name for name, device in flat.items() if isinstance(device, NdpDevice)]
    found: dict[str, Resource] = {}
    for name in resource_names(machine):
        if name in dimms.names:
            found[name] = DimmTime(clock, (CPU, PCIE), MILLION)
        elif name.startswith("channel") and dimms.sharing == PCIE_FIRST:
            found[name] = PriorityResource({}, (PCIE, *units), MILLION)
        else:
            found[name] = Resource({}, MILLION)
    return found
