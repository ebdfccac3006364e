"""Policies written in Python instead of as a compiled rule: exact bounds, experiments. They see the
same values, as objects; what they answer goes back into the records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moesaic.core.routing import ExpertId, Forecast
from moesaic.core.view import View
from moesaic.policies.belief import Belief
from moesaic.policies.brain import lookahead
from moesaic.policies.brain.decide import NEVER
from moesaic.policies.brain.promotions import promote
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.records import CPU_ROW, KIND_ROW, State, distance_to
from moesaic.policies.schedule.base import Assignment, Schedule, Work
from moesaic.policies.timelines import MOVED, ON_CPU, ON_GPU, TRANSFER


def assign_in_python(
    schedule: Schedule, state: State, layer: int, belief: Belief, view: View
) -> Assignment:
    """Also returned: queues of devices that the records have no place for are in nothing else. One
    with transfers must be better than the best without by more than demanding them costs, as with
    compiled schedules."""
    if state.costs.cpu_slowed_by:  # what the CPU takes has been learned
        learned = state.costs.tables[:, : belief.tables.shape[1]]
        belief = replace(belief, tables=learned)
    work = Work(
        layer, state.decision.active, state.decision.table, state.decision.lanes, belief, view
    )
    found = schedule.assign(work)
    if found.moved and state.costs.cpu_slowed_by and state.learned.demand_more_ns:
        lanes = work.lanes.copy()
        lanes[TRANSFER] = NEVER
        without = schedule.assign(replace(work, lanes=lanes))
        if found.believed_ns + state.learned.demand_more_ns >= without.believed_ns:
            found = without
    _write_assignment(state, work, found)
    return found


def _write_assignment(state: State, work: Work, found: Assignment) -> None:
    """Into the records, as schedule/assignment.py does."""
    rows = state.decision.assigned
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
    found, room = 0, state.ahead.max_background
    if prefetch.lookahead and room and lookahead.looks_ahead(state.forecasts, state.ahead):
        lookahead.collect_forecasts(state)
        outlook = _outlook(prefetch, state, belief)
        layers = {forecast.layer: d for d, forecast in enumerate(outlook.forecasts)}
        picks = [(layers[layer], expert) for layer, expert in prefetch.propose(outlook)][:room]
        if picks:
            state.ahead.picks[: len(picks)] = picks
        found = lookahead.admit_proposed(state, len(picks))
        state.ahead.prefetched += found
    return lookahead.count_moves(state.costs, state.decision, state.ahead, promote(state, found))


def _outlook(prefetch: Prefetch, state: State, belief: Belief) -> Outlook:
    flights = state.inputs.flights[: state.inputs.num_flights]
    forecasts = tuple(forecast_from(state, d) for d in range(state.forecasts.count))
    steps = state.forecasts.steps.tolist()
    distances = [
        distance_to(state.setup, state.inputs, steps[d], f.layer) for d, f in enumerate(forecasts)
    ]
    seen, given = state.predictor.trust[distances].tolist(), state.forecasts.trust.tolist()
    trust = tuple(given[d] or own for d, own in enumerate(seen))
    return Outlook(
        layer=state.inputs.layer,
        forecasts=forecasts,
        resident=state.inputs.resident,
        coming=tuple(ExpertId(int(f[0]), int(f[1])) for f in flights),
        expected_rule=state.setup.expected_rule,
        fills_timelines=bool(state.setup.fills_timelines),
        belief=belief,
        lanes=state.ahead.lanes,
        link_free_ns=state.ahead.link_free_ns,
        starts=state.ahead.starts[distances],
        delays=state.ahead.delays[: state.ahead.max_background + 1],
        trust=(1.0,) * len(forecasts) if state.setup.oracle else trust,
        miss_rate=state.learned.miss_rate,
    )


def forecast_from(state: State, number: int) -> Forecast:
    layer, tokens, ranks = state.forecasts.shapes[number].tolist()
    ids = state.forecasts.ids[number, : tokens * ranks].reshape(tokens, ranks)
    scores = state.forecasts.scores[number, : tokens * ranks].reshape(tokens, ranks)
    step = int(state.forecasts.steps[number])
    return Forecast(layer, ids.astype(np.int64), scores.astype(np.float32), step)
