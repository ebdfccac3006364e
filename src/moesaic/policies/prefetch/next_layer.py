"""The experts predicted for the next layer that are not there yet, likeliest first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import ExpertId
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.records import Inputs, Octets, State
from moesaic.policies.timelines import Ints


@compiled
def propose_next_layer(
    ids: Ints,
    scores: NDArray[np.float64],
    absent: NDArray[np.uint8],
    picks: Ints,
) -> int:
    """Write the experts with the highest added-up scores among the absent ones into `picks`;
    returns how many."""
    weights = np.zeros(len(absent))
    for i in range(len(ids)):
        if ids[i] >= 0:
            weights[ids[i]] += scores[i]
    for picked in range(len(picks)):
        best = -1
        for expert in range(len(absent)):
            least = weights[best] if best >= 0 else 0.0
            if absent[expert] and weights[expert] > least:
                best = expert
        if best < 0:
            return picked
        picks[picked] = best
        weights[best] = 0.0
    return len(picks)


@compiled
def absent_experts(inputs: Inputs, layer: int) -> Octets:
    """A byte per expert of a layer, 1 where it is neither resident nor under way."""
    resident, flights = inputs.resident[layer], inputs.flights
    absent = np.zeros(len(resident), dtype=np.uint8)
    for expert in range(len(resident)):
        absent[expert] = resident[expert] == 0
    for i in range(inputs.num_flights):
        if flights[i, 0] == layer:
            absent[flights[i, 1]] = 0
    return absent


@compiled
def propose_of_layer(s: State, number: int, picked: int) -> int:
    """The likeliest of one forecast, after `picked` proposals; returns how many there are now."""
    shape = s.forecasts.shapes[number]
    layer, size = shape[0], shape[1] * shape[2]
    absent, picks = absent_experts(s.inputs, layer), s.ahead.picks
    chosen = s.ahead.scratch[0, : s.ahead.max_background - picked]
    ids, scores = s.forecasts.ids[number, :size], s.forecasts.scores[number, :size]
    more = propose_next_layer(ids, scores, absent, chosen)
    for i in range(more):
        picks[picked + i, 0], picks[picked + i, 1] = number, chosen[i]
    return int(picked + more)


@compiled
def next_layer(s: State) -> int:
    return propose_of_layer(s, 0, 0)


class NextLayer(Prefetch):
    rule = staticmethod(next_layer)
    lookahead = 1

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        if not outlook.forecasts:
            return []
        nearest = outlook.forecasts[0]
        absent = (outlook.resident[nearest.layer] == 0).astype(np.uint8)
        for layer, expert in outlook.coming:
            if layer == nearest.layer:
                absent[expert] = 0
        picks = np.zeros(len(absent), dtype=np.int64)
        ids = np.ascontiguousarray(nearest.ranked).ravel()
        scores = np.ascontiguousarray(nearest.scores, dtype=np.float64).ravel()
        picked = propose_next_layer(ids, scores, absent, picks)
        return [ExpertId(nearest.layer, int(e)) for e in picks[:picked]]


class PreGated(NextLayer):
    """Pre-gated MoE: gates are retrained to choose the next layer's experts one layer early, so
    what is prefetched is what is used. A model must be trained for it: for simulated runs."""

    needs_future = True


@compiled
def given_forecasts(s: State) -> int:
    """The likeliest of every forecast that there is."""
    picked = 0
    for number in range(s.forecasts.count):
        picked = propose_of_layer(s, number, picked)
    return picked


class NoPrefetch(Prefetch):
    rule = staticmethod(given_forecasts)
    predicts = False

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        return []
