"""Cost tables from a machine description, instead of from probing a machine."""

from __future__ import annotations

from dataclasses import replace

from moesaic.core.offloading import CPU
from moesaic.core.units import slowed_by
from moesaic.hardware.dimms import UNSHARED
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.wiring import time_beside_copies
from moesaic.policies.belief import Belief, HostReads
from moesaic.policies.costs import Costs


def described_belief(physics: Physics, max_tokens: int) -> Belief:
    """What a machine description says of up to so many tokens per expert."""
    topology, counts = physics.topology, range(1, max_tokens + 1)

    def points(device: int, placement: int) -> dict[int, int]:
        name, where = topology.devices[device].name, topology.placements[placement].name
        return {tokens: physics.probed_ns(name, tokens, where) for tokens in counts}

    belief = Belief.of(
        Costs.stated(
            topology,
            max_tokens,
            points,
            lambda device: physics.first_ns(topology.devices[device].name),
            lambda link: physics.move_ns(topology.links[link].name),
        )
    )
    alone = physics.expert_ns(CPU, 1)
    beside = time_beside_copies(physics.machine, CPU, alone)
    reads = host_reads(physics.machine)
    return replace(belief, cpu_slowed=slowed_by(alone, beside), host_reads=reads)


def host_reads(machine: MachineSpec) -> HostReads:
    """The rules that a description states, for any belief about its machine."""
    if machine.dimms is None:
        return HostReads()
    return HostReads(machine.dimms.contention, machine.dimms.sharing != UNSHARED)
