"""Virtual time: events in order of (time, sequence), so that runs repeat to the bit."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Clock:
    def __init__(self) -> None:
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Do `action` at `time`; actions of one moment happen in the order they were given."""
        assert time >= self.now, "an event lies in the past"
        heappush(self._events, (time, self._sequence, action))
        self._sequence += 1

    def step(self) -> None:
        """Advance to the next event and do it."""
        time, _, action = heappop(self._events)
        self.now = time
        action()

    def advance(self, duration: int) -> None:
        """Let time pass, with everything that happens meanwhile."""
        until = self.now + duration
        while self._events and self._events[0][0] <= until:
            self.step()
        self.now = until
