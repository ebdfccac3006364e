"""Copies from the expert store to an accelerator, one at a time, at the speed of a link.

Demanded copies go first, in order. Background copies run while there are none; those that have not
started when they are cancelled never do. A copy that has started is never interrupted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, sleep

import torch

from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId
from moesaic.core.units import GB, NS_PER_S
from moesaic.machines.real.slot_table import Slot

# A closed engine was once found whose thread still waited for the notification: it looks again.
_LOOK_AGAIN_S = 0.5


@dataclass(slots=True, eq=False)
class Copy:
    """One expert in transfer. `target` may be overwritten once `after` is set; `slot` is the
    destination of an expert that stays resident."""

    move: Move
    source: torch.Tensor
    target: torch.Tensor
    kind: str  # "transfer" | "prefetch", as in a timeline
    after: threading.Event | None = None
    slot: Slot | None = None
    started: bool = False
    start_ns: int = 0
    end_ns: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def perform(self) -> None:
        """The copying itself."""
        if self.slot is not None:
            self.slot.holds = None
        self.target.copy_(self.source)
        if self.slot is not None:
            self.slot.holds = ExpertId(self.move.layer, self.move.expert)

    def wait(self) -> None:
        self.arrived.wait()
        if self.failure is not None:
            raise self.failure

    def ended(self) -> bool:
        if self.arrived.is_set():
            self.wait()
        return self.arrived.is_set()

    def follow(self) -> None:
        """The copying thread notes itself when it begins."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What an emulated link takes for a copy."""

    bandwidth_gb_s: float
    latency_us: float

    def duration_ns(self, size: int) -> int:
        return round(self.latency_us * 1000 + size / (self.bandwidth_gb_s * GB) * NS_PER_S)


class CopyEngine:
    """A thread that copies with the processor and then lets the rest of the link's time pass."""

    def __init__(self, speed: LinkSpeed) -> None:
        self.speed = speed
        self._demanded: deque[Copy] = deque()
        self._background: deque[Copy] = deque()
        # Entering a lock cannot be interrupted half-way, entering a condition can.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._last: Copy | None = None  # to have started
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="moesaic-link", daemon=True)
        self._thread.start()

    def demand(self, copies: Sequence[Copy]) -> None:
        with self._lock:
            self._demanded.extend(copies)
            self._changed.notify()

    def offer(self, copies: Sequence[Copy]) -> None:
        with self._lock:
            self._background.extend(copies)
            self._changed.notify()

    def cancel_background(self) -> None:
        """Drop the background copies that have not started."""
        with self._lock:
            self._background.clear()

    def halt(self) -> None:
        """Drop every copy that has not started, and wait for the one that has."""
        with self._lock:
            self._demanded.clear()
            self._background.clear()
            last = self._last
        if last is not None:
            last.arrived.wait()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._demanded.clear()
            self._background.clear()
            self._changed.notify()
        self._thread.join()

    def _next(self) -> Copy | None:
        with self._lock:
            while not (self._demanded or self._background or self._closed):
                self._changed.wait(_LOOK_AGAIN_S)
            if self._closed:
                return None
            copy = self._last = (self._demanded or self._background).popleft()
            copy.start_ns = perf_counter_ns()
            copy.started = True
            return copy

    def _work(self) -> None:
        torch.set_num_threads(1)
        while (copy := self._next()) is not None:
            if copy.after is not None:
                copy.after.wait()
                copy.start_ns = perf_counter_ns()
            try:
                copy.perform()
            except BaseException as failure:  # raised where it is waited for
                copy.failure = failure
            due = copy.start_ns + self.speed.duration_ns(copy.source.nbytes)
            left = due - perf_counter_ns()
            if left > 0:
                sleep(left / NS_PER_S)
            copy.end_ns = perf_counter_ns()
            copy.arrived.set()
