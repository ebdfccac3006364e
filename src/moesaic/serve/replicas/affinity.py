"""Which replica a request goes to: the one whose KV cache has the request's conversation, unless
too much waits there; else one with the fewest requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from moesaic.serve.replicas.conversation import Route

MOST_AHEAD = 4  # requests that a conversation's replica may have more than the least busy one
MOST_LINKS = 1 << 16  # that are remembered of one replica: texts of 64 MB
_AVOIDED_S = 10.0
_WORTH = 0.5  # share of a new conversation's text that must be known for it to follow the text


class _Replica:
    def __init__(self) -> None:
        self.load = 0  # requests that have not ended
        self.avoided_until = 0.0
        self._links: OrderedDict[bytes, bool] = OrderedDict()  # whether a request has ended there

    @property
    def size(self) -> int:
        return len(self._links)

    def learn(self, links: Sequence[bytes]) -> None:
        for link in links:
            self._links[link] = self._links.pop(link, False)
        if links:
            self._links[links[-1]] = True
        while len(self._links) > MOST_LINKS:
            self._links.popitem(last=False)

    def known(self, links: Sequence[bytes]) -> tuple[int, bool]:
        """How many of them it has seen, and whether among these is the end of a request: this one
        then goes on from it."""
        ends = False
        for count, link in enumerate(links):
            if link not in self._links:
                return count, ends
            ends = ends or self._links[link]
        return len(links), ends


class Ticket:
    """One request at its replica."""

    def __init__(self, replica: str, end: Callable[[], None]) -> None:
        self.replica = replica
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        if self._end is not None:
            self._end()
        self._end = None


class Affinity:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._replicas: dict[str, _Replica] = {}

    def keep(self, names: Iterable[str]) -> None:
        """These are there now: what others knew has ended with them."""
        self._replicas = {name: self._replicas.get(name) or _Replica() for name in names}

    def avoid(self, name: str) -> None:
        """For a while, as long as there are others."""
        if name in self._replicas:
            self._replicas[name].avoided_until = self._clock() + _AVOIDED_S

    def admit(self, route: Route) -> Ticket:
        name = self._choose(route)
        replica = self._replicas[name]
        replica.load += 1
        replica.learn(route.links)

        def end() -> None:
            replica.load -= 1

        return Ticket(name, end)

    def _choose(self, route: Route) -> str:
        assert self._replicas, "a request is refused where there are none"
        if route.replica in self._replicas:
            return route.replica
        now = self._clock()
        usable = [n for n, each in self._replicas.items() if each.avoided_until <= now]
        names = usable or list(self._replicas)
        least = min(self._replicas[name].load for name in names)
        known = {name: self._replicas[name].known(route.links) for name in names}
        going_on = [
            name
            for name in names
            if known[name][1] and self._replicas[name].load <= least + MOST_AHEAD
        ]
        if going_on:
            return max(going_on, key=lambda name: known[name][0])
        idle = [name for name in names if self._replicas[name].load == least]
        best = max(idle, key=lambda name: known[name][0])
        if known[best][0] >= max(1, _WORTH * len(route.links)):
            return best
        return min(idle, key=lambda name: self._replicas[name].size)
