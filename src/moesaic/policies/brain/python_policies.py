"""Policies written in Python instead of as a compiled rule: exact bounds, experiments. They see the
same values, as objects; what they answer goes back into the buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from moesaic.core.routing import ExpertId, Forecast
from moesaic.core.view import View
from moesaic.policies.belief import Belief
from moesaic.policies.brain import fields as at
from moesaic.policies.brain import lookahead
from moesaic.policies.brain.decide import NEVER
from moesaic.policies.brain.forecasts import distance_to
from moesaic.policies.brain.promotions import promote
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.schedule.base import (
    CPU_ROW,
    KIND_ROW,
    Assignment,
    Schedule,
    Work,
)
from moesaic.policies.timelines import MOVED, ON_CPU, ON_GPU, TRANSFER

if TYPE_CHECKING:
    from moesaic.policies.brain.state import State


def assign_in_python(
    schedule: Schedule, state: State, layer: int, belief: Belief, view: View
) -> Assignment:
    """Also returned: queues of devices that the buffer has no place for are in nothing else. One
    with transfers must be better than the best without by more than demanding them costs, as with
    compiled schedules."""
    s = state.words
    if s[at.CPU_SLOWED_BY]:  # what the CPU takes has been learned
        learned = state.of(at.COSTS)[:, : belief.tables.shape[1]]
        belief = replace(belief, tables=learned)  # type: ignore[arg-type]
    work = Work(layer, int(s[at.ACTIVE]), state.of(at.TABLE), state.of(at.LANES), belief, view)  # type: ignore[arg-type]
    found = schedule.assign(work)
    if found.moved and s[at.CPU_SLOWED_BY] and s[at.DEMAND_MORE_NS]:
        lanes = work.lanes.copy()
        lanes[TRANSFER] = NEVER
        without = schedule.assign(replace(work, lanes=lanes))
        if found.believed_ns + s[at.DEMAND_MORE_NS] >= without.believed_ns:
            found = without
    _write_assignment(state, work, found)
    return found


def _write_assignment(state: State, work: Work, found: Assignment) -> None:
    """Into the buffer, as schedule/rules.py does."""
    rows = state.of(at.ASSIGNED)
    for row, experts in enumerate((found.gpu, found.cpu, found.moved)):
        rows[row, : len(experts)] = experts
        rows[3, row] = len(experts)
    rows[3, 3] = found.believed_ns
    experts, loads = work.table[:2, : work.n]
    rows[CPU_ROW, : work.n] = work.belief.tables[1, loads]
    kind = rows[KIND_ROW, : work.n]
    kind[:] = ON_GPU
    kind[np.isin(experts, found.cpu)] = ON_CPU
    kind[np.isin(experts, found.moved)] = MOVED


def propose_in_python(prefetch: Prefetch, state: State, belief: Belief) -> int:
    """The second stage of the look-ahead; returns how many moves."""
    s, found = state.words, 0
    room = int(s[at.MAX_BACKGROUND])
    if prefetch.lookahead and room and lookahead.looks_ahead(s):
        lookahead.collect_forecasts(s)
        outlook = _outlook(prefetch, state, belief)
        layers = {forecast.layer: d for d, forecast in enumerate(outlook.forecasts)}
        picks = [(layers[layer], expert) for layer, expert in prefetch.propose(outlook)][:room]
        if picks:
            state.of(at.PICKS)[: len(picks)] = picks
        found = lookahead.admit_proposed(s, len(picks))
        s[at.PREFETCHED] += found
    return lookahead.count_moves(s, promote(s, found))


def _outlook(prefetch: Prefetch, state: State, belief: Belief) -> Outlook:
    s = state.words
    flights = state.of(at.FLIGHTS)[: s[at.NUM_FLIGHTS]]
    forecasts = tuple(forecast_from(state, d) for d in range(s[at.FORECASTS]))
    steps = state.of(at.FORECAST_STEPS).tolist()
    distances = [distance_to(s, steps[d], f.layer) for d, f in enumerate(forecasts)]
    seen, given = state.of(at.TRUST)[distances].tolist(), state.of(at.FORECAST_TRUST).tolist()
    trust = tuple(given[d] or own for d, own in enumerate(seen))
    return Outlook(
        layer=int(s[at.LAYER]),
        forecasts=forecasts,
        resident=state.of(at.RESIDENT),  # type: ignore[arg-type]
        coming=tuple(ExpertId(int(f[0]), int(f[1])) for f in flights),
        rule=int(s[at.SCHEDULE_RULE]),
        belief=belief,
        lanes=state.of(at.LATER_LANES),  # type: ignore[arg-type]
        link_free_ns=int(s[at.LINK_FREE_NS]),
        starts=state.of(at.STARTS)[distances],  # type: ignore[arg-type]
        delays=state.of(at.DELAYS)[: int(s[at.MAX_BACKGROUND]) + 1],  # type: ignore[arg-type]
        trust=(1.0,) * len(forecasts) if s[at.ORACLE] else trust,
        miss_rate=float(state.of(at.MISS_RATE)[0]),
    )


def forecast_from(state: State, number: int) -> Forecast:
    layer, tokens, ranks = state.of(at.FORECAST_SHAPES)[number].tolist()
    ids = state.of(at.FORECAST_IDS)[number, : tokens * ranks].reshape(tokens, ranks)
    scores = state.of(at.FORECAST_SCORES)[number, : tokens * ranks].reshape(tokens, ranks)
    step = int(state.of(at.FORECAST_STEPS)[number])
    return Forecast(layer, ids.astype(np.int64), scores.astype(np.float32), step)
