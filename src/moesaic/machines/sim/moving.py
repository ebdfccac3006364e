"""Experts in flight: moves become tasks on links, and memories account for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import NamedTuple

from moesaic.core.layer_plan import Move
from moesaic.core.residency import Residency
from moesaic.core.topology import Hop
from moesaic.core.under_way import UnderWay
from moesaic.core.view import Flight
from moesaic.hardware.link_use import USUAL_USE
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Draws, Lane, Task
from moesaic.machines.sim.ndp.draws import DimmDraws
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.resources import Resource
from moesaic.machines.sim.sharing_lane import CpuCaches


class Leg(NamedTuple):
    """What one link does for a move."""

    lane: Lane
    ns: int
    draws: Draws = ()


class Moving:
    """One move as tasks, one per link that carries a part of it: it takes its slots when the
    first of them starts, and has arrived when all have ended."""

    __slots__ = ("begun", "kind", "left", "move", "size", "tasks")

    def __init__(self, kind: str, move: Move, tasks: list[tuple[Lane, Task]], size: int) -> None:
        self.kind, self.move, self.tasks, self.size = kind, move, tasks, size
        self.begun = False
        self.left = len(tasks)

    def submit(self) -> None:
        for lane, task in self.tasks:
            lane.submit(task)


class Moves:
    """All links of a machine. `under_way` are the moves that have started, oldest first; `on_cpu`
    are experts (layer, expert) that the CPU has computed last, and that `caches` hold."""

    def __init__(
        self,
        physics: Physics,
        memory: Residency,
        lanes: Mapping[str, Lane],
        clock: Clock,
        dimms: DimmDraws | None = None,
        caches: CpuCaches | None = None,
    ) -> None:
        self.under_way = UnderWay[Moving](memory)
        self._physics, self._memory, self._clock, self._dimms = physics, memory, clock, dimms
        self.on_cpu: Collection[tuple[int, int]] = ()
        self._caches = caches
        self._use = physics.machine.pcie_use or USUAL_USE
        self._offered: list[Lane] = []  # links with something in the background
        self._waiting: list[Moving] = []  # what was offered, in order
        self._links = [lanes[link.name] for link in memory.topology.links]
        self._routes: dict[tuple[int, int], tuple[list[Leg], int]] = {}

    def prepare(self, kind: str, move: Move) -> Moving:
        """`kind` as in a timeline: "transfer" or "prefetch"."""
        legs, size = self._route(move.source, move.destination)
        tasks = [(leg.lane, Task(kind, leg.ns, move.layer, move.expert)) for leg in legs]
        for (_, task), leg in zip(tasks, legs, strict=True):
            task.draws = leg.draws
            if self._caches is not None and (move.layer, move.expert) in self.on_cpu:
                self._caches.slow_down(task)
        moving = Moving(kind, move, tasks, size)
        started, ended = partial(self._started, moving), partial(self._ended, moving)
        for _, task in tasks:
            task.on_start, task.on_end = started, ended
        return moving

    def offer(self, moves: Iterable[Move]) -> None:
        """What may start while its links are idle, instead of what was offered before."""
        offered: dict[Lane, list[Task]] = {}
        waiting = [self.prepare("prefetch", move) for move in moves]
        for moving in waiting:
            for lane, task in moving.tasks:
                offered.setdefault(lane, []).append(task)
        self.cancel_background()
        self._offered, self._waiting = list(offered), waiting
        for lane, tasks in offered.items():
            lane.replace_background(tasks)
        for lane in self._offered:
            lane.wake()

    def cancel_background(self) -> None:
        """Drop what was offered and has neither started nor been submitted behind what has."""
        room = self._use.submitted_copies - len(self.under_way)
        waiting = (moving for moving in self._waiting if not moving.begun)
        for moving in islice(waiting, max(room, 0)):
            if len(self.under_way):
                self._started(moving)
                for lane, task in moving.tasks:
                    lane.promote(task)
        for lane in self._offered:
            lane.replace_background(())
        self._offered, self._waiting = [], []

    def in_flight(self) -> tuple[Flight, ...]:
        return tuple(
            Flight(m.move.layer, m.move.expert, self._remaining_ns(m), m.move.destination)
            for m in self.under_way
        )

    def bytes_of(self, moves: Iterable[Move]) -> int:
        return sum(self._route(move.source, move.destination)[1] for move in moves)

    def _remaining_ns(self, moving: Moving) -> int:
        """The remaining time of a part that waits for its link: until everything in line there has
        ended."""
        return max(
            task.end_ns - self._clock.now if lane.running is task else lane.queued_ns()
            for lane, task in moving.tasks
            if not task.done
        )

    def _route(self, source: int, destination: int) -> tuple[list[Leg], int]:
        """What each link does, and how many bytes are carried in all."""
        found = self._routes.get((source, destination))
        if found is None:
            hops = self._memory.topology.route(source, destination)
            assert hops is not None, f"no link from placement {source} to {destination}"
            legs = [self._leg(hop, source) for hop in hops]
            found = legs, sum(self._physics.carried_bytes(hop.share) for hop in hops)
            self._routes[source, destination] = found
        return found

    def _leg(self, hop: Hop, source: int) -> Leg:
        lane, start = self._links[hop.link], self._memory.topology.placements[source]
        if self._dimms is not None:
            found = self._dimms.move(lane.name, start.name, hop.share)
            if found is not None:
                return Leg(lane, *found)
        return Leg(lane, self._physics.move_ns(lane.name, hop.share))

    def alone_ns(self, source: int, destination: int) -> int:
        """How long a move takes when nothing else happens: the longest of its legs, or the sum of
        what they take of the resource that is scarcest."""
        legs, _ = self._route(source, destination)
        taken: dict[Resource, int] = {}
        for leg in legs:
            for resource, share in leg.draws:
                taken[resource] = taken.get(resource, 0) + leg.ns * share
        scarcest = max((-(-ns // each.whole) for each, ns in taken.items()), default=0)
        return max(*(leg.ns for leg in legs), scarcest)

    def _started(self, moving: Moving) -> None:
        if moving.begun:
            return
        moving.begun = True
        self.under_way.begin(moving, moving.size)
        if len(moving.tasks) > 1:  # the other parts follow, whatever is dropped
            for lane, task in moving.tasks:
                lane.promote(task)

    def _ended(self, moving: Moving) -> None:
        moving.left -= 1
        if moving.left == 0:
            self.under_way.arrive(moving)
