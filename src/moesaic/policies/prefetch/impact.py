"""Impact-driven prefetching (HybriMoE section IV-C).

Every predicted expert of the next layers that is not on the GPU is a candidate. Its impact is
how much earlier its layer would end with it on its way, found by running the schedule's own
rule twice: without it, and with it arriving when the link could have brought it. So an expert
that would come too late for the next layer loses to one that comes in time for a later one.
The best goes first; then the rest is valued again, one transfer later. A transfer that would
still hold the link when the next layer wants it costs that layer time: it must be worth more.

Predictions err, and more so further ahead: an impact counts as much as predictions at that
distance have been right so far (`trust`), less the chance that the evicted expert was wanted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import ExpertId
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import MOST_BACKGROUND, Outlook, Prefetch
from moesaic.policies.schedule.rules import layer_finish
from moesaic.policies.timelines import (
    ABSENT,
    EXPERT,
    READY,
    TRANSFER,
    Ints,
    gather,
)

CANDIDATE = READY + 1  # one more row of a layer's table: may be wished for


@compiled
def _expect_surprises(table: Ints, n: int, surprises: int) -> None:
    """Some predictions will be wrong, and what comes instead may be missing: so many of those
    predicted to be there are counted as missing, lowest loads first, without being wished for."""
    for i in range(n - 1, -1, -1):
        table[CANDIDATE, i] = table[READY, i] == ABSENT
        if table[READY, i] == 0 and surprises > 0:
            surprises -= 1
            table[READY, i] = ABSENT


@compiled
def _best_of_layer(
    rule: int,
    n: int,
    table: Ints,
    tables: Ints,
    lanes: Ints,
    arrival: int,
    scratch: NDArray[np.int64],
) -> tuple[int, int]:
    """The missing expert whose arrival helps the layer most: (impact, column), or (0, -1).

    `arrival` counts from when the layer's experts start; 0 is in time."""
    before = layer_finish(rule, n, table, tables, lanes, scratch)
    impact = 0
    column = -1
    for i in range(n):
        if table[READY, i] != ABSENT or not table[CANDIDATE, i]:
            continue
        table[READY, i] = arrival
        gain = before - layer_finish(rule, n, table, tables, lanes, scratch)
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
    starts: Ints,
    link_free: int,
    delays: Ints,
    weights: NDArray[np.float64],
    scratch: NDArray[np.int64],
    picks: Ints,
) -> int:
    """Write (distance index, expert) pairs into `picks`, best first; returns how many.

    `starts[d]` is when the layer's experts are believed to start, `link_free` when the link can
    take up the first of these transfers, `delays[p]` what p of them cost the next layer."""
    for picked in range(len(picks)):
        arrival = link_free + (picked + 1) * lanes[TRANSFER]
        best = max(float(delays[picked + 1] - delays[picked]), 0.0)  # greedy: may look negative
        at = -1
        column = -1
        for d in range(len(counts)):
            late = max(arrival - starts[d], 0)
            impact, i = _best_of_layer(rule, counts[d], layers[d], tables, lanes, late, scratch)
            if impact * weights[d] > best:
                best, at, column = impact * weights[d], d, i
        if at < 0:
            return picked
        picks[picked, 0] = at
        picks[picked, 1] = layers[at, EXPERT, column]
        layers[at, READY, column] = max(arrival - starts[at], 0)
    return len(picks)


class Impact(Prefetch):
    def __init__(self, lookahead: int = 3) -> None:
        self.lookahead = lookahead
        self._experts = 0

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        if not outlook.forecasts:
            return []
        self._make_room(outlook.resident.shape[1])
        depth = len(outlook.forecasts)
        for d, forecast in enumerate(outlook.forecasts):
            table = self._layers[d]
            n = gather(forecast.ranked, outlook.resident[forecast.layer], table, self._zeros)
            self._counts[d] = n
            wrong = (1.0 - outlook.trust[d]) * n
            _expect_surprises(table, n, round(wrong * outlook.miss_rate))
            # A wrong prediction may have meant the very expert that has to make room.
            self._weights[d] = max(outlook.trust[d] - wrong / max(self._experts - n, 1), 0.0)
            for layer, expert in outlook.coming:
                if layer == forecast.layer:
                    self._mark_ready(d, expert)
        picked = rank_by_impact(
            outlook.rule, self._counts[:depth], self._layers, outlook.belief.tables,
            outlook.lanes, outlook.starts, outlook.link_free_ns, outlook.delays,
            self._weights, self._scratch, self._picks[: len(outlook.delays) - 1],
        )  # fmt: skip
        layers = [forecast.layer for forecast in outlook.forecasts]
        return [ExpertId(layers[d], e) for d, e in self._picks[:picked].tolist()]

    def _mark_ready(self, d: int, expert: int) -> None:
        n = int(self._counts[d])
        columns = np.flatnonzero(self._layers[d, EXPERT, :n] == expert)
        self._layers[d, READY, columns] = 0

    def _make_room(self, experts: int) -> None:
        if self._experts == experts:
            return
        self._experts = experts
        self._counts = np.zeros(max(self.lookahead, 1), dtype=np.int64)
        self._weights = np.zeros(max(self.lookahead, 1))
        self._layers = np.zeros((max(self.lookahead, 1), 4, experts), dtype=np.int64)
        self._zeros = np.zeros(experts, dtype=np.int64)
        self._scratch = np.zeros((4, experts), dtype=np.int64)
        self._picks = np.zeros((MOST_BACKGROUND, 2), dtype=np.int64)
