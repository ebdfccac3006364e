"""From a machine description to lanes that share what the description says they share."""

from __future__ import annotations

from moesaic.core.report import Timeline
from moesaic.core.topology import Topology
from moesaic.core.view import PLANNER
from moesaic.hardware.machine_spec import MachineSpec, SharedResource
from moesaic.hardware.parts import PRIORITY
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Lane
from moesaic.machines.sim.resources import WHOLE, PriorityResource, Resource, SharingLane


def lanes_of(
    machine: MachineSpec, topology: Topology, clock: Clock, timeline: Timeline
) -> dict[str, Lane]:
    """One per device and link. Where they share something, they feel each other; the planner has
    a lane where it takes a share, too."""
    resources = [_resource(shared) for shared in machine.shared()]
    drawing = {name for resource in resources for name in resource.shares}
    names = (*topology.lanes, *((PLANNER,) if PLANNER in drawing else ()))
    lanes: dict[str, Lane] = {}
    for name in names:
        mine = [resource for resource in resources if name in resource.shares]
        shares = mine or machine.dimms is not None  # else its tasks draw on nothing
        lane = SharingLane(name, clock, timeline, mine) if shares else Lane(name, clock, timeline)
        lanes[name] = lane
    return lanes


def _resource(shared: SharedResource) -> Resource:
    shares = {lane: round(share * WHOLE) for lane, share in shared.shares.items()}
    return PriorityResource(shares, shared.first) if shared.rule == PRIORITY else Resource(shares)
