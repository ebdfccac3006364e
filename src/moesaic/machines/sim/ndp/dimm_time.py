"""A DIMM's DRAM time, which host reads, its unit and moves between DIMMs take one after another.

TriMoE's equation 6: what a unit computes and what the host reads of its DIMM add up."""

from __future__ import annotations

from collections.abc import Sequence

from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.resources import FULL, Resource


class DimmTime(Resource):
    """Reads by the lanes in `first` are as fast as their channels and links allow, and never wait
    here; the others have what such reads leave. Reads that want more than the whole together, as
    where CPU and PCIe share nothing, take the rest of their time afterwards, from the others."""

    follows = True

    def __init__(self, clock: Clock, first: Sequence[str], whole: int) -> None:
        super().__init__({}, whole)
        self.first = frozenset(first)
        self._clock = clock
        self._since_ns = self._reading = self._owed = 0

    def rebalance(self) -> bool:
        self._pass_time()
        self._reading = others = 0
        for lane, share in self.drawn.items():
            if lane.name in self.first:
                passed, of = lane.speed
                self._reading += share * passed // of
            else:
                others += share
        left = max(self.whole - self._reading, 0)
        if self._owed and left:
            self._clock.at(self._clock.now - (-self._owed // left), self._settle_soon)
        known = self.speed
        if self._owed:
            left = 0
        self.speed = (left, others) if others > left else FULL
        self.slows = self.speed is not FULL
        return self.speed != known

    def _pass_time(self) -> None:
        """What has been asked for since the last change, over what the DIMM has sent."""
        now = self._clock.now
        self._owed = max(self._owed + (self._reading - self.whole) * (now - self._since_ns), 0)
        self._since_ns = now

    def _settle_soon(self) -> None:
        self._clock.before_advancing(self.settle)
