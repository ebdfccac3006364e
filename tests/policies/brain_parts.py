"""Parts of the compiled brain by themselves, over a buffer of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.policies import records
from moesaic.policies.brain import forecasts, lookahead, slots
from moesaic.policies.brain.decide import fill_routing, fill_view
from moesaic.policies.brain.python_policies import forecast_from
from moesaic.policies.records import MOVE_WORDS, Sizes, State
from moesaic.policies.rule_calls import Rule, schedule_rule
from moesaic.policies.schedule.base import Work


def state_of(layers: int, experts: int, lookahead: int = 0, cost_tokens: int = 1) -> State:
    state = records.state_of(Sizes(layers, experts, lookahead, 0, 1, 64, cost_tokens))
    state.setup.predicts = 1
    state.predictor.trust[:] = 1.0
    state.predictor.history_shapes[..., 0] = -1
    state.predictor.pending_shapes[..., 0] = -1
    return state


class Slots:
    """The slot accounting of one plan, over a view and stated values."""

    def __init__(self, view: View, values: Sequence[Sequence[float]], per_layer: bool) -> None:
        layers, experts = view.resident.shape
        self._state = state_of(layers, experts)
        s = self._state
        s.setup.slots, s.setup.global_pool = view.slots, not per_layer
        self._state.cache.values[:] = values
        quota = [view.slots // layers + (at < view.slots % layers) for at in range(layers)]
        self._state.setup.quota[:] = quota
        s.inputs.num_flights = len(view.in_flight)
        for number, flight in enumerate(view.in_flight):
            self._state.inputs.flights[number] = flight[:3]
        fill_view(s.inputs, view.resident, view.held, view.occupied, 0, 0, 0)
        slots.open_slots(s.setup, s.inputs, s.slots)

    def shield(self, layer: int, expert: int) -> None:
        self._state.slots.shield[layer, expert] = 1

    def admit(self, layer: int, expert: int, worth: float) -> ExpertId | str | None:
        """The victim, "free" where a slot is free, or None where there is no slot."""
        move = np.zeros(MOVE_WORDS, dtype=np.int64)
        s = self._state
        if not slots.admit(s.setup, s.inputs, s.slots, s.cache, layer, expert, worth, move):
            return None
        assert move.tolist()[:2] == [layer, expert]
        assert move[4] == 1, "it is kept"
        return ExpertId(int(move[2]), int(move[3])) if move[2] >= 0 else "free"


class Forecasting:
    """The brain's forecasts and its trust in them; `ahead` layers."""

    def __init__(self, layers: int, experts: int, top_k: int, ahead: int) -> None:
        self._state = state_of(layers, experts, ahead)
        self._state.setup.top_k = top_k
        self._step = 0

    @property
    def trust(self) -> list[float]:
        found: list[float] = self._state.predictor.trust.tolist()
        return found

    def observe(self, routing: LayerRouting) -> None:
        self._fill(routing)
        forecasts.observe_routing(self._state)

    def forecast(self, routing: LayerRouting) -> list[Forecast]:
        """The body's own where the routing has them, else predictions; to be judged later."""
        s = self._state
        self._fill(routing)
        given = routing.forecasts[: self._state.sizes.lookahead]
        s.forecasts.count = 0
        records = s.setup, s.inputs, s.forecasts
        for each in given:
            step = self._step if each.step is None else each.step
            forecasts.fill_forecast(*records, step, each.layer, each.ranked, each.scores)
        count = s.forecasts.count or forecasts.predict(*records, s.predictor)
        forecasts.expect(*records, s.predictor, count)
        return [forecast_from(self._state, number) for number in range(count)]

    def _fill(self, routing: LayerRouting) -> None:
        s = self._state
        self._step += routing.layer == 0
        inputs: Any = (routing.experts, routing.ranked, routing.scores)
        fill_routing(s.inputs, self._step, routing.layer, *map(np.ascontiguousarray, inputs))
        s.forecasts.from_body = bool(routing.forecasts)


class LinkPrice:
    """What the link's lateness costs, learned from layers under one rule."""

    def __init__(self, works: Sequence[Work], rule: Rule) -> None:
        self._state = state_of(1, 4, cost_tokens=works[0].belief.tables.shape[1])
        s = self._state
        s.setup.expected_rule = schedule_rule(rule)
        for work in works:
            s.decision.active = work.n
            self._state.decision.table[:, : work.n] = work.table[:, : work.n]
            self._state.decision.lanes[:] = work.lanes
            self._state.costs.tables[:] = work.belief.tables
            lookahead.price_link(s.setup, s.costs, s.decision, s.ahead)

    def delays(self, link_free_ns: int, transfer_ns: int, next_start_ns: int) -> list[int]:
        s = self._state
        s.ahead.link_free_ns, s.costs.transfer_ns = link_free_ns, transfer_ns
        count = lookahead.fill_delays(s, next_start_ns)
        found: list[int] = self._state.ahead.delays[: count + 1].tolist()
        return found


def numbers_of(state: State) -> list[object]:
    """Every number of the records, by which two moments compare."""
    words = list(state.views["q"][: State.words])
    return [words, *(getattr(record, member.name).tolist() for record, member in state.arrays)]
