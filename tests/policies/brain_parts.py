"""Parts of the compiled brain by themselves, over a buffer of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.policies.brain import fields as at
from moesaic.policies.brain import forecasts, lookahead, slots
from moesaic.policies.brain.decide import fill_routing, fill_view
from moesaic.policies.brain.python_policies import forecast_from
from moesaic.policies.brain.state import Sizes, State
from moesaic.policies.prefetch.base import NEXT_LAYER
from moesaic.policies.schedule.base import Work


def state_of(layers: int, experts: int, lookahead: int = 0, cost_tokens: int = 1) -> State:
    state = State(Sizes(layers, experts, lookahead, 0, 1, 64, cost_tokens))
    state.words[at.PREFETCH_RULE] = NEXT_LAYER  # a policy that predicts
    state.of(at.TRUST)[:] = 1.0
    state.of(at.HISTORY_SHAPES)[..., 0] = -1
    state.of(at.PENDING_SHAPES)[..., 0] = -1
    return state


class Slots:
    """The slot accounting of one plan, over a view and stated values."""

    def __init__(self, view: View, values: Sequence[Sequence[float]], per_layer: bool) -> None:
        layers, experts = view.resident.shape
        self._state = state_of(layers, experts)
        s = self._state.words
        s[at.SLOTS], s[at.GLOBAL_POOL] = view.slots, not per_layer
        self._state.of(at.VALUES)[:] = values
        quota = [view.slots // layers + (at < view.slots % layers) for at in range(layers)]
        self._state.of(at.QUOTA)[:] = quota
        s[at.NUM_FLIGHTS] = len(view.in_flight)
        for number, flight in enumerate(view.in_flight):
            self._state.of(at.FLIGHTS)[number] = flight[:3]
        fill_view(s, view.resident, view.held, view.occupied, 0, 0, 0)
        slots.open_slots(s)

    def shield(self, layer: int, expert: int) -> None:
        slots.shield(self._state.words, layer, expert)

    def admit(self, layer: int, expert: int, worth: float) -> ExpertId | str | None:
        """The victim, "free" where a slot is free, or None where there is no slot."""
        move = np.zeros(at.MOVE_WORDS, dtype=np.int64)
        if not slots.admit(self._state.words, layer, expert, worth, move):
            return None
        assert move.tolist()[:2] == [layer, expert]
        assert move[4] == 1, "it is kept"
        return ExpertId(int(move[2]), int(move[3])) if move[2] >= 0 else "free"


class Forecasting:
    """The brain's forecasts and its trust in them; `ahead` layers."""

    def __init__(self, layers: int, experts: int, top_k: int, ahead: int) -> None:
        self._state = state_of(layers, experts, ahead)
        self._state.words[at.TOP_K] = top_k
        self._step = 0

    @property
    def trust(self) -> list[float]:
        found: list[float] = self._state.of(at.TRUST).tolist()
        return found

    def observe(self, routing: LayerRouting) -> None:
        self._fill(routing)
        forecasts.observe_routing(self._state.words)

    def forecast(self, routing: LayerRouting) -> list[Forecast]:
        """The body's own where the routing has them, else predictions; to be judged later."""
        s = self._state.words
        self._fill(routing)
        given = routing.forecasts[: self._state.sizes.lookahead]
        s[at.FORECASTS] = 0
        for each in given:
            step = self._step if each.step is None else each.step
            forecasts.fill_forecast(s, step, each.layer, each.ranked, each.scores)
        count = int(s[at.FORECASTS]) or forecasts.predict(s)
        forecasts.expect(s, count)
        return [forecast_from(self._state, number) for number in range(count)]

    def _fill(self, routing: LayerRouting) -> None:
        s = self._state.words
        self._step += routing.layer == 0
        inputs: Any = (routing.experts, routing.ranked, routing.scores)
        fill_routing(s, self._step, routing.layer, *map(np.ascontiguousarray, inputs))
        s[at.BODY_FORECASTS] = bool(routing.forecasts)


class LinkPrice:
    """What the link's lateness costs, learned from layers under one rule."""

    def __init__(self, works: Sequence[Work], rule: int) -> None:
        self._state = state_of(1, 4, cost_tokens=works[0].belief.tables.shape[1])
        s = self._state.words
        s[at.SCHEDULE_RULE] = rule
        for work in works:
            s[at.ACTIVE] = work.n
            self._state.of(at.TABLE)[:, : work.n] = work.table[:, : work.n]
            self._state.of(at.LANES)[:] = work.lanes
            self._state.of(at.COSTS)[:] = work.belief.tables
            lookahead.price_link(s)

    def delays(self, link_free_ns: int, transfer_ns: int, next_start_ns: int) -> list[int]:
        s = self._state.words
        s[at.LINK_FREE_NS], s[at.TRANSFER_NS] = link_free_ns, transfer_ns
        count = lookahead.fill_delays(s, next_start_ns)
        found: list[int] = self._state.of(at.DELAYS)[: count + 1].tolist()
        return found
