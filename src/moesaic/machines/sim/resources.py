"""Shared resources: memory bandwidth, a channel, a DIMM, the cores of a host. A lane may draw on
any number of them at once.

A lane needs a share of each while it works: one that is its own, or one that depends on its task.
While the shares add up to at most the whole, no lane slows down; beyond that the resource's rule
says how much slower each becomes. A lane is as slow as the scarcest of its resources makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

WHOLE = 1000  # shares are counted in thousandths, so that virtual time stays whole

Speed = tuple[int, int]  # virtual time passes for a task at this fraction
FULL: Speed = (WHOLE, WHOLE)


class Drawing(Protocol):
    """A lane that draws on resources (sharing_lane.py)."""

    name: str

    @property
    def speed(self) -> Speed: ...

    def retime_soon(self) -> None: ...


class Resource:
    """The rule `proportional`: shares that add up to more than the whole slow all lanes alike.

    `shares` are those that lanes draw whatever they do; `whole` is what shares are counted in."""

    follows = False  # whether it settles again when the speed of a lane that draws on it changes

    def __init__(self, shares: Mapping[str, int], whole: int = WHOLE) -> None:
        self.shares, self.whole = shares, whole
        self.drawn: dict[Drawing, int] = {}  # lanes at work
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
