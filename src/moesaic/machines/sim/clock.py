"""Virtual time: events in order of (time, sequence), so that runs repeat to the bit."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Clock:
    def __init__(self) -> None:
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._unsettled: dict[Callable[[], None], None] = {}

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Do `action` at `time`; actions of one moment happen in the order they were given."""
        assert time >= self.now, "an event lies in the past"
        heappush(self._events, (time, self._sequence, action))
        self._sequence += 1

    def before_advancing(self, action: Callable[[], None]) -> None:
        """Do `action` when everything of this moment has happened, once however often it is
        asked for: many things may begin and end at one time."""
        self._unsettled[action] = None

    def settle(self) -> None:
        """Do what waits for the end of this moment."""
        while self._unsettled:
            actions, self._unsettled = self._unsettled, {}
            for action in actions:
                action()

    def step(self) -> None:
        """Advance to the next event and do it."""
        if self._unsettled and (not self._events or self._events[0][0] > self.now):
            self.settle()
        self.now, _, action = heappop(self._events)
        action()

    def advance(self, duration: int) -> None:
        """Let time pass, with everything that happens meanwhile."""
        until = self.now + duration
        self._settle_if_over()
        while self._events and self._events[0][0] <= until:
            self.step()
            self._settle_if_over()
        self.now = until

    def _settle_if_over(self) -> None:
        if self._unsettled and (not self._events or self._events[0][0] > self.now):
            self.settle()
