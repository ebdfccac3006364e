"""From a machine description to lanes that share what the description says they share, and what
they take from each other."""

from __future__ import annotations

from moesaic.core.offloading import PCIE
from moesaic.core.report import Timeline
from moesaic.core.topology import Topology
from moesaic.core.view import PLANNER
from moesaic.hardware.machine_spec import MachineSpec, SharedResource
from moesaic.hardware.parts import PRIORITY
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Lane, Task
from moesaic.machines.sim.resources import WHOLE, PriorityResource, Resource
from moesaic.machines.sim.sharing_lane import CpuCaches, SharingLane

_LONG = 1000  # a copy that outlasts any work beside it


def lanes_of(
    machine: MachineSpec,
    topology: Topology,
    clock: Clock,
    timeline: Timeline,
    caches: CpuCaches | None = None,
) -> dict[str, Lane]:
    """One per device and link. Where they share something, they feel each other; the planner has
    a lane where it takes a share, too."""
    resources = [_resource(shared) for shared in machine.shared()]
    if caches is not None:
        resources.append(caches)
    drawing = {name for resource in resources for name in resource.shares}
    names = (*topology.lanes, *((PLANNER,) if PLANNER in drawing else ()))
    lanes: dict[str, Lane] = {}
    for name in names:
        mine = [resource for resource in resources if name in resource.shares]
        draws = machine.dimms is not None or (name == PCIE and caches is not None)
        shares = mine or draws  # else its tasks draw on nothing
        lane = SharingLane(name, clock, timeline, mine) if shares else Lane(name, clock, timeline)
        lanes[name] = lane
    return lanes


def time_beside_copies(machine: MachineSpec, device: str, work_ns: int) -> int:
    """How long a device takes for so much work while the first link copies."""
    clock, topology = Clock(), machine.topology()
    lanes = lanes_of(machine, topology, clock, Timeline(enabled=False))
    work = Task("expert", work_ns)
    lanes[topology.links[0].name].submit(Task("transfer", _LONG * work_ns))
    lanes[device].submit(work)
    while not work.done:
        clock.step()
    return work.end_ns


def caches_of(machine: MachineSpec, dtype: str) -> CpuCaches | None:
    """What copies of experts that the CPU has just computed cost it, in weights of `dtype`; None
    where that was not measured."""
    use = machine.pcie_use
    if use is None:
        return None
    return CpuCaches(use.cached_factor, max(use.cached_cpu_factor.get(dtype, 1.0), 1.0))


def _resource(shared: SharedResource) -> Resource:
    shares = {lane: round(share * WHOLE) for lane, share in shared.shares.items()}
    return PriorityResource(shares, shared.first) if shared.rule == PRIORITY else Resource(shares)
