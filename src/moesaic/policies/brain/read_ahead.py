"""Whether CPU workers read ahead into their caches, and which experts of the next layer: what the
CPU may be given there. Compiled."""

from __future__ import annotations

from moesaic.policies.brain.forecasts import likelihoods
from moesaic.policies.compiled import compiled
from moesaic.policies.records import MOST_READ_AHEAD, Ahead, Inputs, Predictor, Setup, State

IDLE_LAYERS = 256  # without CPU experts, after which none is expected


@compiled
def choose_read_ahead(s: State) -> int:
    """After a layer: how many candidates `ahead.read_ahead_ids` has, the likeliest first; 0: none
    is read. Of those that are not under way to the GPU, `setup.read_ahead` are to be read. A body
    with forecasts takes theirs instead: nothing is predicted for it."""
    on_cpu = s.decision.plan[1]
    s.ahead.cpu_idle_layers = 0 if on_cpu else min(s.ahead.cpu_idle_layers, IDLE_LAYERS) + 1
    if s.setup.read_ahead == 0 or s.inputs.tokens != 1 or s.inputs.layer + 1 == s.setup.layers:
        return 0
    if s.ahead.cpu_idle_layers > IDLE_LAYERS:
        return 0
    return (
        MOST_READ_AHEAD
        if s.forecasts.from_body
        else _rank_absent(s.setup, s.inputs, s.ahead, s.predictor)
    )


@compiled
def _rank_absent(setup: Setup, inputs: Inputs, ahead: Ahead, predictor: Predictor) -> int:
    """Experts of the next layer that are not on the GPU, by likelihood; returns how many."""
    later, experts = inputs.layer + 1, setup.experts
    likely = likelihoods(setup, inputs, predictor)
    resident = inputs.resident[later]
    ids = ahead.read_ahead_ids
    held = 0
    for expert in range(experts):
        full = held == MOST_READ_AHEAD
        if resident[expert] or (full and likely[expert] <= likely[ids[held - 1]]):
            continue
        place = held - 1 if full else held
        while place > 0 and likely[ids[place - 1]] < likely[expert]:
            ids[place] = ids[place - 1]
            place -= 1
        ids[place] = expert
        held = min(held + 1, MOST_READ_AHEAD)
    return int(held)
