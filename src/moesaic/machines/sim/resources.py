"""Shared resources: memory bandwidth, a channel, a DIMM, the cores of a host. A lane may draw on
any number of them at once.

A lane needs a share of each while it works. While the shares add up to at most the whole, no lane
slows down; beyond that the resource's rule says how much slower each becomes. A lane is as slow
as the scarcest of its resources makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from moesaic.core.report import Timeline
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Lane, Task

WHOLE = 1000  # shares are counted in thousandths, so that virtual time stays whole

Speed = tuple[int, int]  # virtual time passes for a task at this fraction
FULL: Speed = (WHOLE, WHOLE)


class Resource:
    """The rule `proportional`: shares that add up to more than the whole slow all lanes alike."""

    def __init__(self, shares: Mapping[str, int]) -> None:
        self.shares = shares  # lane -> thousandths it needs while it works
        self.lanes: list[SharingLane] = []
        self._speed = FULL

    def rebalance(self) -> None:
        """A lane began or ended a task."""
        self._speed = (WHOLE, max(self._asked(self.lanes), WHOLE))

    def speed(self, lane: str) -> Speed:
        return self._speed

    def _asked(self, lanes: Sequence[SharingLane]) -> int:
        return sum(self.shares[lane.name] for lane in lanes if lane.running is not None)


class PriorityResource(Resource):
    """The rule `priority`: the lanes in `first` are served first, the others share what is left."""

    def __init__(self, shares: Mapping[str, int], first: Sequence[str]) -> None:
        super().__init__(shares)
        self._first = frozenset(first)
        self._first_speed = FULL

    def rebalance(self) -> None:
        before = self._asked([lane for lane in self.lanes if lane.name in self._first])
        others = self._asked([lane for lane in self.lanes if lane.name not in self._first])
        self._first_speed = (WHOLE, max(before, WHOLE))
        left = max(WHOLE - before, 0)
        self._speed = (left, others) if others > left else FULL

    def speed(self, lane: str) -> Speed:
        return self._first_speed if lane in self._first else self._speed


class SharingLane(Lane):
    """A lane that draws on `resources`."""

    def __init__(
        self, name: str, clock: Clock, timeline: Timeline, resources: Sequence[Resource]
    ) -> None:
        super().__init__(name, clock, timeline)
        self._resources = resources
        self._speed = FULL  # since when: `_since_ns`
        self._since_ns = self._left_ns = 0
        self._timing = 0  # counts changes: an end that was scheduled before the last one is void
        for resource in resources:
            resource.lanes.append(self)

    def retime(self) -> None:
        """Reschedule the end after a change of speed."""
        task, speed = self.running, self._least_speed()
        if task is None or speed == self._speed:
            return
        now, (passed, of) = self._clock.now, self._speed
        self._left_ns -= (now - self._since_ns) * passed // of
        self._since_ns, self._speed = now, speed
        self._schedule_end(task)

    def _begin(self, task: Task) -> None:
        self._left_ns, self._since_ns = task.duration, self._clock.now
        self._speed = self._least_speed()
        self._schedule_end(task)
        self._rebalance()

    def _least_speed(self) -> Speed:
        least = FULL
        for resource in self._resources:
            speed = resource.speed(self.name)
            if speed[0] * least[1] < least[0] * speed[1]:
                least = speed
        return least

    def _rebalance(self) -> None:
        for resource in self._resources:
            resource.rebalance()
        for lane in dict.fromkeys(lane for each in self._resources for lane in each.lanes):
            lane.retime()

    def _schedule_end(self, task: Task) -> None:
        """When it will end at this speed; at none, never: until another lane ends."""
        self._timing += 1
        passed, of = self._speed
        if passed == 0:
            task.end_ns = self._clock.now + max(self._left_ns, 0)  # at best
            return
        left = max(-(-self._left_ns * of // passed), 0)
        task.end_ns = self._clock.now + left
        self._clock.at(task.end_ns, partial(self._end_if, self._timing))

    def _end_if(self, timing: int) -> None:
        if timing == self._timing:
            self._timing += 1
            self._end()
            self._rebalance()
