"""Shared resources: memory bandwidth, a channel, a DIMM, the cores of a host. A lane may draw on
any number of them at once.

A lane needs a share of each while it works: one that is its own, or one that depends on its task.
While the shares add up to at most the whole, no lane slows down; beyond that the resource's rule
says how much slower each becomes. A lane is as slow as the scarcest of its resources makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from moesaic.core.offloading import CPU, PCIE
from moesaic.core.report import Timeline
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Draws, Lane, Task

WHOLE = 1000  # shares are counted in thousandths, so that virtual time stays whole

Speed = tuple[int, int]  # virtual time passes for a task at this fraction
FULL: Speed = (WHOLE, WHOLE)


class Resource:
    """The rule `proportional`: shares that add up to more than the whole slow all lanes alike.

    `shares` are those that lanes draw whatever they do; `whole` is what shares are counted in."""

    follows = False  # whether it settles again when the speed of a lane that draws on it changes

    def __init__(self, shares: Mapping[str, int], whole: int = WHOLE) -> None:
        self.shares, self.whole = shares, whole
        self.drawn: dict[SharingLane, int] = {}  # lanes at work
        self.first: frozenset[str] = frozenset()  # lanes served first
        self.first_speed = self.speed = FULL  # theirs, and the others'
        self.slows = False  # whether one of them is less than full
        self.settle = self._settle  # one object: the clock does it once

    def _settle(self) -> None:
        """Lanes have begun or ended tasks."""
        if self.rebalance():
            for lane in self.drawn:
                lane.retime_soon()

    def rebalance(self) -> bool:
        """Returns whether any speed has changed."""
        asked, before = sum(self.drawn.values()), self.speed
        self.slows = asked > self.whole
        self.speed = (self.whole, asked) if self.slows else FULL
        return self.speed != before


class PriorityResource(Resource):
    """The rule `priority`: the lanes in `first` are served first, the others share what is left."""

    def __init__(self, shares: Mapping[str, int], first: Sequence[str], whole: int = WHOLE) -> None:
        super().__init__(shares, whole)
        self.first = frozenset(first)

    def rebalance(self) -> bool:
        before = others = 0
        for lane, share in self.drawn.items():
            if lane.name in self.first:
                before += share
            else:
                others += share
        whole, first_known, known = self.whole, self.first_speed, self.speed
        left = whole - before if before < whole else 0
        self.first_speed = (whole, before) if before > whole else FULL
        self.speed = (left, others) if others > left else FULL
        self.slows = self.speed is not FULL or self.first_speed is not FULL
        return self.speed != known or self.first_speed != first_known


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
        """Of what is running; full until that is known, at the end of the moment it began."""
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
        """From now on; other lanes become slower or faster at the end of this moment."""
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
