"""Impact-driven prefetching (HybriMoE section IV-C).

Every predicted expert of the next layers that is not on the GPU is a candidate. Its impact is
how much earlier its layer would end with it there, found by running the schedule's own rule
twice. The best goes first; then the rest of its layer is valued again, as if it were there.

Predictions err, and more so further ahead: an impact counts as much as predictions at that
distance have been right so far (`trust`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import ExpertId
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.schedule.rules import apply_rule
from moesaic.policies.timelines import (
    ABSENT,
    EXPERT,
    LOAD,
    READY,
    Ints,
    gather,
)

MOST = 8  # proposals per layer; more are forgotten when the next plan is made


@compiled
def _finish(
    rule: int, n: int, table: Ints, tables: Ints, lanes: Ints, scratch: NDArray[np.int64]
) -> int:
    for i in range(n):
        scratch[1, i] = tables[0, table[LOAD, i]]
        scratch[2, i] = tables[1, table[LOAD, i]]
    return apply_rule(rule, scratch[0], table[READY], scratch[1], scratch[2], lanes, n, scratch[3])


@compiled
def _best_of_layer(
    rule: int, n: int, table: Ints, tables: Ints, lanes: Ints, scratch: NDArray[np.int64]
) -> tuple[int, int]:
    """The missing expert whose presence helps the layer most: (impact, column), or (0, -1)."""
    before = _finish(rule, n, table, tables, lanes, scratch)
    impact = 0
    column = -1
    for i in range(n):
        if table[READY, i] != ABSENT:
            continue
        table[READY, i] = 0
        gain = before - _finish(rule, n, table, tables, lanes, scratch)
        table[READY, i] = ABSENT
        if gain > impact:
            impact = gain
            column = i
    return impact, column


@compiled
def rank_by_impact(
    rule: int,
    counts: Ints,
    layers: NDArray[np.int64],
    tables: Ints,
    lanes: Ints,
    trust: NDArray[np.float64],
    scratch: NDArray[np.int64],
    picks: Ints,
    most: int,
) -> int:
    """Write (distance index, expert) pairs into `picks`, best first; returns how many."""
    depth = counts.shape[0]
    gains = np.zeros(depth)
    columns = np.full(depth, -1)
    for d in range(depth):
        impact, columns[d] = _best_of_layer(rule, counts[d], layers[d], tables, lanes, scratch)
        gains[d] = impact * trust[d]
    picked = 0
    while picked < most:
        d = 0
        for other in range(1, depth):
            if gains[other] > gains[d]:
                d = other
        if gains[d] <= 0.0:
            break
        picks[picked, 0] = d
        picks[picked, 1] = layers[d, EXPERT, columns[d]]
        picked += 1
        layers[d, READY, columns[d]] = 0
        impact, columns[d] = _best_of_layer(rule, counts[d], layers[d], tables, lanes, scratch)
        gains[d] = impact * trust[d]
    return picked


class Impact(Prefetch):
    def __init__(self, lookahead: int = 3) -> None:
        self.lookahead = lookahead
        self._experts = 0

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        chosen = [f.ranked for f in outlook.forecasts]
        first = outlook.layer + 1
        return self.rank(outlook, first, chosen)

    def rank(self, outlook: Outlook, first: int, chosen: list[Ints]) -> list[ExpertId]:
        """Rank the missing experts among those `chosen` for the layers from `first` on."""
        if not chosen:
            return []
        self._make_room(outlook.resident.shape[1])
        depth = len(chosen)
        for d in range(depth):
            self._counts[d] = gather(
                chosen[d], outlook.resident[first + d], self._layers[d], self._zeros
            )
        for layer, expert in outlook.coming:
            if first <= layer < first + depth:
                self._mark_ready(layer - first, expert)
        picked = rank_by_impact(
            outlook.rule, self._counts[:depth], self._layers, outlook.belief.tables,
            outlook.lanes, np.asarray(outlook.trust), self._scratch, self._picks, MOST,
        )  # fmt: skip
        return [ExpertId(first + d, e) for d, e in self._picks[:picked].tolist()]

    def _mark_ready(self, d: int, expert: int) -> None:
        n = int(self._counts[d])
        columns = np.flatnonzero(self._layers[d, EXPERT, :n] == expert)
        self._layers[d, READY, columns] = 0

    def _make_room(self, experts: int) -> None:
        if self._experts == experts:
            return
        self._experts = experts
        self._counts = np.zeros(max(self.lookahead, 1), dtype=np.int64)
        self._layers = np.zeros((max(self.lookahead, 1), 3, experts), dtype=np.int64)
        self._zeros = np.zeros(experts, dtype=np.int64)
        self._scratch = np.zeros((4, experts), dtype=np.int64)
        self._picks = np.zeros((MOST, 2), dtype=np.int64)
