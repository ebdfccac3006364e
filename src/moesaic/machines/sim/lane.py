"""Lanes: things that do one task at a time, in order, and then the next.

A lane knows nothing of experts or memory; what a task means lies in its hooks. Any device or
link is a lane, so a machine with more of them needs no new mechanism."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from moesaic.core.report import Span, Timeline
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.resources import Resource

Draws = tuple[tuple[Resource, int], ...]  # shares of what a task needs while it runs


class Task:
    """Work for one lane. It starts when it is first in line and `waits` is 0. `draws` are shares
    of resources that depend on the task (see resources.py), in addition to the lane's own."""

    __slots__ = (
        "cached", "done", "draws", "duration", "end_ns", "expert", "kind", "lane", "layer",
        "on_end", "on_start", "tokens", "unblocks", "waits",
    )  # fmt: skip

    def __init__(
        self, kind: str, duration: int, layer: int = -1, expert: int = -1, tokens: int = 0
    ) -> None:
        self.kind, self.duration = kind, duration
        self.layer, self.expert, self.tokens = layer, expert, tokens
        self.waits = 0
        self.unblocks: list[Task] = []
        self.on_start: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.lane: Lane | None = None
        self.done = False
        self.end_ns = 0
        self.draws: Draws = ()
        self.cached = False  # it reads what the CPU's caches hold

    def after(self, other: Task) -> None:
        """Do not start before `other` has ended."""
        if not other.done:
            self.waits += 1
            other.unblocks.append(self)


class Lane:
    """A queue worked off in order; `background` tasks run only while the queue is empty."""

    def __init__(self, name: str, clock: Clock, timeline: Timeline) -> None:
        self.name = name
        self.running: Task | None = None
        self.busy_ns = 0
        self._clock, self._timeline = clock, timeline
        self._queue: deque[Task] = deque()
        self._background: deque[Task] = deque()
        self._started_ns = 0  # what is running

    def submit(self, task: Task) -> None:
        task.lane = self
        self._queue.append(task)
        if self.running is None:
            self._next()

    def replace_background(self, tasks: Iterable[Task]) -> None:
        """Drop the background tasks that have not started and take these instead; `wake` lets
        them begin."""
        self._background = deque(tasks)

    def wake(self) -> None:
        if self.running is None:
            self._next()

    def promote(self, task: Task) -> None:
        """A background task becomes one that is not dropped."""
        if task in self._background:
            self._background.remove(task)
            self.submit(task)

    @property
    def remaining_ns(self) -> int:
        """The time until the running task has ended."""
        return 0 if self.running is None else self.running.end_ns - self._clock.now

    @property
    def worked_ns(self) -> int:
        """Time worked up to now: `busy_ns` and the begun part of what is running."""
        begun = 0 if self.running is None else self._clock.now - self._started_ns
        return self.busy_ns + begun

    def queued_ns(self) -> int:
        """The time until everything submitted has ended, if nothing had to wait."""
        if self.running is None and not self._queue:
            return 0
        return self.remaining_ns + sum(task.duration for task in self._queue)

    def _next(self) -> None:
        if self._queue:
            if self._queue[0].waits:
                return
            task = self._queue.popleft()
        elif self._background:
            task = self._background.popleft()
        else:
            return
        self.running = task
        self._started_ns = self._clock.now
        if task.on_start is not None:
            task.on_start()
        self._begin(task)

    def _begin(self, task: Task) -> None:
        task.end_ns = self._clock.now + task.duration
        self._clock.at(task.end_ns, self._end)

    def _end(self) -> None:
        task = self.running
        assert task is not None, f"lane {self.name} ended a task it was not running"
        self.running = None
        task.done = True
        start, end = self._started_ns, task.end_ns
        self.busy_ns += end - start
        if self._timeline.enabled:
            self._timeline.add(
                Span(self.name, task.kind, start, end, task.layer, task.expert, task.tokens)
            )
        if task.on_end is not None:
            task.on_end()
        for waiting in task.unblocks:
            waiting.waits -= 1
            lane = waiting.lane
            if waiting.waits == 0 and lane is not None and lane.running is None:
                lane._next()
        if self.running is None:
            self._next()
