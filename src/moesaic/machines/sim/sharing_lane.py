"""Lanes that draw on shared resources, and are slowed while others want more than there is left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from moesaic.core.offloading import CPU, PCIE
from moesaic.core.report import Timeline
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Draws, Lane, Task
from moesaic.machines.sim.resources import FULL, WHOLE, PriorityResource, Resource, Speed


class CpuCaches(PriorityResource):
    """The CPU's caches, which answer a link that reads what the CPU has just computed: that takes
    the link `slower` times as long, and the CPU `cpu_slower` times meanwhile."""

    def __init__(self, slower: float, cpu_slower: float) -> None:
        super().__init__({CPU: WHOLE}, (PCIE,))
        self._slower, self._share = slower, WHOLE - round(WHOLE / cpu_slower)

    def slow_down(self, copying: Task) -> None:
        copying.cached = True
        copying.duration = round(copying.duration * self._slower)
        if self._share:
            copying.draws = (*copying.draws, (self, self._share))


class SharingLane(Lane):
    """A lane that draws on `resources`, and on those of its tasks."""

    def __init__(
        self, name: str, clock: Clock, timeline: Timeline, resources: Sequence[Resource]
    ) -> None:
        super().__init__(name, clock, timeline)
        self._own: Draws = tuple((resource, resource.shares[name]) for resource in resources)
        self._draws: Draws = ()  # of what is running
        self._speed: Speed | None = FULL  # since `_since_ns`; None: not yet known
        self._since_ns = self._left_ns = 0
        self._retime = self.retime  # one object: the clock does it once
        self._timing = 0  # counts changes: an end that was scheduled before the last one is void

    def retime(self) -> None:
        """Schedule the end of what has begun, and again after a change of speed."""
        task = self.running
        if task is None or not self._draws:
            return
        speed, before = self._least_speed(), self._speed
        if speed is before or speed == before:
            return
        now = self._clock.now
        if before is not None:
            passed, of = before
            self._left_ns -= (now - self._since_ns) * passed // of
        self._since_ns, self._speed = now, speed
        if before is not None or speed is not FULL:
            for resource, _ in self._draws:
                if resource.follows:
                    self._clock.before_advancing(resource.settle)
        self._schedule_end(task, speed)

    @property
    def speed(self) -> Speed:
        """The speed of the running task; full until that is known, at the end of the moment it
        began."""
        return self._speed or FULL

    def retime_soon(self) -> None:
        self._clock.before_advancing(self._retime)

    def _begin(self, task: Task) -> None:
        self._left_ns, self._since_ns = task.duration, self._clock.now
        draws = self._own + task.draws
        if draws != self._draws:
            self._draw(draws)
        if not draws:
            self._speed = FULL
            self._schedule_end(task, FULL)
            return
        self._speed = None
        task.end_ns = self._clock.now + task.duration  # at best, until it is scheduled
        self.retime_soon()

    def _draw(self, draws: Draws) -> None:
        """Draw from now on; other lanes become slower or faster at the end of this moment."""
        before, self._draws = self._draws, draws
        for resource, _ in before:
            del resource.drawn[self]
        later = self._clock.before_advancing
        for resource, _ in before:
            later(resource.settle)
        for resource, share in draws:
            resource.drawn[self] = share
            later(resource.settle)

    def _least_speed(self) -> Speed:
        least, name = FULL, self.name
        for resource, _ in self._draws:
            if resource.slows:
                speed = resource.first_speed if name in resource.first else resource.speed
                if speed is not FULL and speed[0] * least[1] < least[0] * speed[1]:
                    least = speed
        return least

    def _schedule_end(self, task: Task, speed: Speed) -> None:
        """When it will end at this speed; at none, never: until another lane ends."""
        self._timing += 1
        passed, of = speed
        if passed == 0:
            task.end_ns = self._clock.now + max(self._left_ns, 0)  # at best
            return
        left = self._left_ns if passed == of else -(-self._left_ns * of // passed)
        task.end_ns = self._clock.now + (left if left > 0 else 0)
        self._clock.at(task.end_ns, partial(self._end_if, self._timing))

    def _end_if(self, timing: int) -> None:
        if timing == self._timing:
            self._timing += 1
            self._end()
            if self.running is None and self._draws:
                self._draw(())
