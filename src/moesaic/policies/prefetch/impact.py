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
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.records import IMPACT_ROWS, MAX_PROPOSED, State, distance_to
from moesaic.policies.rule_calls import decide_kinds
from moesaic.policies.schedule.hybrid_bound import cpu_rests, earliest_end
from moesaic.policies.timelines import (
    ABSENT,
    EXPERT,
    LOAD,
    READY,
    TRANSFER,
    Ints,
    gather,
)

CANDIDATE = READY + 1  # one more row of a layer's table: may be proposed


@compiled
def _expect_surprises(table: Ints, n: int, surprises: int) -> None:
    """Some predictions will be wrong, and what comes instead may be missing: so many of those
    predicted to be there are counted as missing, lowest loads first, without being proposed."""
    for i in range(n - 1, -1, -1):
        table[CANDIDATE, i] = table[READY, i] == ABSENT
        if table[READY, i] == 0 and surprises > 0:
            surprises -= 1
            table[READY, i] = ABSENT


@compiled
def prepare_layer(
    chosen: Ints,
    resident: NDArray[np.uint8],
    trust: float,
    miss_rate: float,
    table: Ints,
    loads: Ints,
) -> tuple[int, float]:
    """A forecast layer as the schedule would see it; how many experts, and what an impact there
    counts."""
    n = gather(chosen, resident, table, loads)
    wrong = (1.0 - trust) * n
    _expect_surprises(table, n, int(np.rint(wrong * miss_rate)))
    # A wrong prediction may have meant the very expert that has to make room.
    return n, max(trust - wrong / max(len(resident) - n, 1), 0.0)


@compiled
def mark_coming(table: Ints, n: int, expert: int) -> None:
    """An expert under way will be there."""
    for i in range(n):
        if table[EXPERT, i] == expert:
            table[READY, i] = 0


@compiled
def _best_of_layer(
    rule: int,
    fills_timelines: int,
    n: int,
    table: Ints,
    tables: Ints,
    lanes: Ints,
    arrival: int,
    scratch: NDArray[np.int64],
) -> tuple[int, int]:
    """The missing expert whose arrival helps the layer most: (impact, column), or (0, -1).

    `arrival` counts from when the layer's experts start; 0 is in time. Experts of one load are
    alike, and the first of them is valued for all; not so to `hybrid`, which may take a cached
    one from the GPU later, but not one that was moved. For that one a bound says which cannot
    help more than the best so far."""
    kind, ready, gpu, cpu, spare = scratch[0], table[READY], scratch[1], scratch[2], scratch[3]
    least_gpu = tables[0, table[LOAD, 0]]
    for i in range(n):
        gpu[i] = tables[0, table[LOAD, i]]
        cpu[i] = tables[1, table[LOAD, i]]
        least_gpu = min(least_gpu, gpu[i])
    before = decide_kinds(rule, kind, ready, gpu, cpu, lanes, n, spare)
    missing = cpu_rests(ready, cpu, n, scratch[4])
    rank = -1
    impact = 0
    column = -1
    valued = -1
    for i in range(n):
        if ready[i] != ABSENT:
            continue
        rank += 1
        if not table[CANDIDATE, i]:
            continue
        if fills_timelines:
            end = earliest_end(scratch[4], missing, rank, cpu[i], least_gpu, lanes)
            if before - end <= impact:
                continue
        elif table[LOAD, i] == valued:
            continue
        valued = table[LOAD, i]
        ready[i] = arrival
        gain = before - decide_kinds(rule, kind, ready, gpu, cpu, lanes, n, spare)
        ready[i] = ABSENT
        if gain > impact:
            impact = gain
            column = i
    return impact, column


@compiled
def rank_by_impact(
    rule: int,
    fills_timelines: int,
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
    depth = len(counts)
    known = np.full((depth, 3), np.int64(-1))  # per layer: arrival, impact, column found for it
    for picked in range(len(picks)):
        arrival = link_free + (picked + 1) * lanes[TRANSFER]
        best = max(float(delays[picked + 1] - delays[picked]), 0.0)  # greedy: may look negative
        at = -1
        column = -1
        for d in range(depth):
            late = max(arrival - starts[d], 0)
            if known[d, 0] != late:  # else nothing has changed since the last pick
                impact, i = _best_of_layer(
                    rule, fills_timelines, counts[d], layers[d], tables, lanes, late, scratch
                )
                known[d, 0], known[d, 1], known[d, 2] = late, impact, i
            if known[d, 1] * weights[d] > best:
                best, at, column = known[d, 1] * weights[d], d, known[d, 2]
        if at < 0:
            return picked
        picks[picked, 0] = at
        picks[picked, 1] = layers[at, EXPERT, column]
        layers[at, READY, column] = max(arrival - starts[at], 0)
        known[at, 0] = -1
    return len(picks)


@compiled
def by_impact(s: State) -> int:
    depth, shapes, flights = s.forecasts.count, s.forecasts.shapes, s.inputs.flights
    tables, counts, weights = s.ahead.tables, s.ahead.counts, s.ahead.weights
    for d in range(depth):
        layer, size = shapes[d, 0], shapes[d, 1] * shapes[d, 2]
        distance = distance_to(s.setup, s.inputs, s.forecasts.steps[d], layer)
        s.ahead.forecast_starts[d] = s.ahead.starts[distance]
        given = s.forecasts.trust[d]
        right = given if given > 0.0 else s.predictor.trust[distance]
        right = 1.0 if s.setup.oracle else right
        counts[d], weights[d] = prepare_layer(
            s.forecasts.ids[d, :size], s.inputs.resident[layer], right, s.learned.miss_rate,
            tables[d], s.decision.loads,
        )  # fmt: skip
        for i in range(s.inputs.num_flights):
            if flights[i, 0] == layer:
                mark_coming(tables[d], counts[d], flights[i, 1])
    return rank_by_impact(
        s.setup.expected_rule, s.setup.fills_timelines, counts[:depth], tables, s.costs.tables,
        s.ahead.lanes, s.ahead.forecast_starts, s.ahead.link_free_ns, s.ahead.delays, weights,
        s.ahead.scratch, s.ahead.picks[: s.ahead.max_background],
    )  # fmt: skip


class Impact(Prefetch):
    rule = staticmethod(by_impact)

    def __init__(self, lookahead: int = 3, read_ahead: int = 4) -> None:
        self.lookahead, self.read_ahead = lookahead, read_ahead

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        depth, experts = len(outlook.forecasts), outlook.resident.shape[1]
        counts, weights = np.zeros(depth, dtype=np.int64), np.zeros(depth)
        layers = np.zeros((depth, 4, experts), dtype=np.int64)
        loads = np.zeros(experts, dtype=np.int64)
        for d, forecast in enumerate(outlook.forecasts):
            ids = np.ascontiguousarray(forecast.ranked).ravel()
            resident = outlook.resident[forecast.layer]
            counts[d], weights[d] = prepare_layer(
                ids, resident, outlook.trust[d], outlook.miss_rate, layers[d], loads
            )
            for layer, expert in outlook.coming:
                if layer == forecast.layer:
                    mark_coming(layers[d], counts[d], expert)
        picks = np.zeros((min(len(outlook.delays) - 1, MAX_PROPOSED), 2), dtype=np.int64)
        picked = rank_by_impact(
            outlook.expected_rule, int(outlook.fills_timelines), counts, layers,
            outlook.belief.tables, outlook.lanes, outlook.starts, outlook.link_free_ns,
            outlook.delays, weights,
            np.zeros((IMPACT_ROWS, experts), dtype=np.int64), picks,
        )  # fmt: skip
        return [ExpertId(outlook.forecasts[d].layer, e) for d, e in picks[:picked].tolist()]


class OraclePrefetch(Impact):
    """Perfect foresight of the next layers: how much better predictions could help."""

    needs_future = True

    def __init__(self, lookahead: int = 3) -> None:
        super().__init__(lookahead, read_ahead=0)
