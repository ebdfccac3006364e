"""Lanes that draw on one thing: memory bandwidth, or the cores of a host.

Each lane needs a share of it while it works. As long as the shares of those at work add up to no
more than the whole, nobody notices; beyond that, all of them slow down alike."""

from __future__ import annotations

from functools import partial

from moesaic.core.report import Timeline
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Lane, Task

WHOLE = 1000  # shares are counted in thousandths, so that virtual time stays whole


class Pool:
    """What is shared."""

    def __init__(self) -> None:
        self.lanes: list[SharingLane] = []
        self.asked = WHOLE  # by those at work, at least the whole

    def rebalance(self) -> None:
        """Somebody began or ended."""
        asked = sum(lane.share for lane in self.lanes if lane.running is not None)
        self.asked = max(asked, WHOLE)
        for lane in self.lanes:
            lane.retime(self.asked)


class SharingLane(Lane):
    """`share` is what it needs of the pool while it works, in thousandths."""

    def __init__(self, name: str, clock: Clock, timeline: Timeline, pool: Pool, share: int) -> None:
        super().__init__(name, clock, timeline)
        self.share = share
        self._pool = pool
        self._asked = WHOLE  # since when time passes at WHOLE / asked
        self._since_ns = self._left_ns = 0
        self._timing = 0  # counts changes: an end that was foreseen before the last one is void
        pool.lanes.append(self)

    def retime(self, asked: int) -> None:
        """From now on the pool is asked for so much."""
        task = self.running
        if task is None or asked == self._asked:
            return
        now = self._clock.now
        self._left_ns -= (now - self._since_ns) * WHOLE // self._asked
        self._since_ns, self._asked = now, asked
        self._foresee(task)

    def _begin(self, task: Task) -> None:
        self._left_ns, self._since_ns = task.duration, self._clock.now
        self._asked = self._pool.asked
        self._foresee(task)
        self._pool.rebalance()

    def _foresee(self, task: Task) -> None:
        self._timing += 1
        left = max(-(-self._left_ns * self._asked // WHOLE), 0)
        task.end_ns = self._clock.now + left
        self._clock.at(task.end_ns, partial(self._end_if, self._timing))

    def _end_if(self, timing: int) -> None:
        if timing == self._timing:
            self._timing += 1
            self._end()
            self._pool.rebalance()
