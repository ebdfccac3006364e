"""What later layers will want, and how often that came true. Compiled.

Where the body cannot forecast, naive Bayes over adjacent layers does: the experts a token chose in
layer l speak for those it will choose in layer l + d. Nothing is trained beforehand. A forecast is
addressed by (step, layer), so it may speak about another pass than the one that made it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled
from moesaic.policies.records import (
    MOST_READ_AHEAD,
    Ahead,
    Forecasts,
    Inputs,
    Predictor,
    Setup,
    State,
    distance_to,
)
from moesaic.policies.timelines import Ints

_SMOOTH = 0.1
_WEIGHT = 0.02  # of the newest layer in the running share of right forecasts


@compiled
def fill_forecast(
    setup: Setup,
    inputs: Inputs,
    forecasts: Forecasts,
    step: int,
    layer: int,
    ranked: Ints,
    scores: NDArray[np.float32],
    trust: float = 0.0,
) -> None:
    """The body's next forecast, of a layer of this pass or another, cut to top-k; nearest layer
    first. One that is not about the next `setup.lookahead` layers is of no use yet, and left out. A
    `trust` of 0 is not known."""
    if not 0 <= distance_to(setup, inputs, step, layer) < setup.lookahead:
        return
    number = forecasts.count
    forecasts.count += 1
    tokens, ranks = ranked.shape[0], min(ranked.shape[1], setup.top_k)
    if setup.oracle:
        ranks = ranked.shape[1]  # one row with every expert as often as it has tokens
    shape = forecasts.shapes[number]
    shape[0], shape[1], shape[2] = layer, tokens, ranks
    forecasts.steps[number] = step
    forecasts.trust[number] = trust
    ids = forecasts.ids[number]
    given = forecasts.scores[number]
    for token in range(tokens):
        for rank in range(ranks):
            ids[token * ranks + rank] = ranked[token, rank]
            given[token * ranks + rank] = scores[token, rank]


@compiled
def observe_routing(s: State) -> None:
    """A layer was routed: learn from it, and judge what was forecast for it."""
    if s.setup.lookahead == 0:
        return
    if not s.forecasts.from_body and s.setup.predicts:
        if s.ahead.resting == 0:
            _count(s.setup, s.inputs, s.predictor, s.setup.lookahead)
        elif s.setup.read_ahead > 0 and s.inputs.tokens == 1:
            _count(s.setup, s.inputs, s.predictor, 1)
    _judge(s.setup, s.inputs, s.predictor)


@compiled
def _count(setup: Setup, inputs: Inputs, predictor: Predictor, most: int) -> None:
    """Pairs of experts chosen by one token in this layer and in one of so many before."""
    ahead, layer = setup.lookahead, inputs.layer
    tokens, used = inputs.tokens, inputs.used_ranks
    chosen = inputs.expert_ids
    shapes = predictor.history_shapes
    history = predictor.history
    uses = predictor.uses
    if layer == 0:
        shapes[:, 0] = -1
    for i in range(tokens * used):
        if chosen[i] >= 0:
            uses[:most, layer, chosen[i]] += 1.0
    pairs = predictor.pairs
    for distance in range(1, most + 1):
        earlier = (layer - distance) % (ahead + 1)
        known = layer >= distance and shapes[earlier, 0] == layer - distance
        if not known or shapes[earlier, 1] != tokens:
            continue
        _count_pairs(
            history[earlier], shapes[earlier, 2], chosen, used, tokens, pairs[distance - 1, layer]
        )
    here = layer % (ahead + 1)
    shapes[here, 0], shapes[here, 1], shapes[here, 2] = layer, tokens, used
    history[here, : tokens * used] = chosen[: tokens * used]


@compiled
def _count_pairs(
    earlier: Ints, ranks: int, chosen: Ints, used: int, tokens: int, pairs: NDArray[np.float64]
) -> None:
    for token in range(tokens):
        for i in range(token * ranks, (token + 1) * ranks):
            for j in range(token * used, (token + 1) * used):
                if earlier[i] >= 0 and chosen[j] >= 0:
                    pairs[earlier[i], chosen[j]] += 1.0


@compiled
def _judge(setup: Setup, inputs: Inputs, predictor: Predictor) -> None:
    """Compare what was forecast for this layer with what it chose."""
    ahead, tokens, used = setup.lookahead, inputs.tokens, inputs.used_ranks
    address = inputs.step * setup.layers + inputs.layer
    shapes = predictor.pending_shapes[address % (ahead + 1)]
    pending = predictor.pending[address % (ahead + 1)]
    trust, chosen = predictor.trust, inputs.expert_ids
    for distance in range(ahead):
        if shapes[distance, 0] != address:
            continue
        shapes[distance, 0] = -1
        ranks = shapes[distance, 2]
        if shapes[distance, 1] != tokens or ranks == 0:
            continue
        right, named = _right(pending[distance], ranks, chosen, used, tokens)
        if named == 0:
            continue
        predictor.judged = 1
        trust[distance] += _WEIGHT * (right / named - trust[distance])


@compiled
def _right(predicted: Ints, ranks: int, chosen: Ints, used: int, tokens: int) -> tuple[int, int]:
    """How many predictions came true, and how many there were."""
    right = 0
    named = 0
    for token in range(tokens):
        for i in range(token * ranks, (token + 1) * ranks):
            if predicted[i] < 0:
                continue
            named += 1
            for j in range(token * used, (token + 1) * used):
                right += predicted[i] == chosen[j]
    return right, named


@compiled
def predict(setup: Setup, inputs: Inputs, forecasts: Forecasts, predictor: Predictor) -> int:
    """Forecast the next layers from the pairs seen so far; returns how many."""
    layer, experts, ahead = inputs.layer, setup.experts, setup.lookahead
    tokens, used, ranks = inputs.tokens, inputs.used_ranks, setup.top_k
    count = int(min(ahead, setup.layers - 1 - layer))
    shapes, ids, scores = forecasts.shapes, forecasts.ids, forecasts.scores
    chosen = inputs.expert_ids
    pairs, uses = predictor.pairs, predictor.uses
    posterior, ratios = predictor.posterior, predictor.ratios
    for d in range(count):
        later = layer + d + 1
        shapes[d, 0], shapes[d, 1], shapes[d, 2] = later, tokens, ranks
        forecasts.steps[d] = inputs.step
        forecasts.trust[d] = 0.0
        ratios[:, experts] = 0.0
        for token in range(tokens):
            mine = chosen[token * used : (token + 1) * used]
            _posterior(mine, pairs[d, later], uses[d, later], ratios, posterior)
            at_token = slice(token * ranks, (token + 1) * ranks)
            _rank(posterior, ids[d, at_token], scores[d, at_token])
    return count


@compiled
def likelihoods(setup: Setup, inputs: Inputs, predictor: Predictor) -> NDArray[np.float64]:
    """How likely the only token is to choose each expert of the next layer, up to a factor."""
    experts, later = setup.experts, inputs.layer + 1
    pairs = predictor.pairs
    uses = predictor.uses
    ratios = predictor.ratios
    ratios[:, experts] = 0.0
    posterior = predictor.posterior
    mine = inputs.expert_ids[: inputs.used_ranks]
    _posterior(mine, pairs[0, later], uses[0, later], ratios, posterior)
    return posterior


@compiled
def complete(setup: Setup, inputs: Inputs, forecasts: Forecasts, predictor: Predictor) -> None:
    """Predict the tokens that the forecasts of this pass say nothing about."""
    experts, tokens, used = setup.experts, inputs.tokens, inputs.used_ranks
    shapes, ids, scores = forecasts.shapes, forecasts.ids, forecasts.scores
    chosen = inputs.expert_ids
    pairs = predictor.pairs
    uses = predictor.uses
    ratios = predictor.ratios
    for d in range(forecasts.count):
        layer, ranks = shapes[d, 0], shapes[d, 2]
        if forecasts.steps[d] != inputs.step or shapes[d, 1] != tokens:
            continue
        distance, begun = distance_to(setup, inputs, inputs.step, layer), False
        for token in range(tokens):
            if ids[d, token * ranks] >= 0:
                continue
            if not begun:
                ratios[:, experts] = 0.0
                begun = True
            mine = chosen[token * used : (token + 1) * used]
            _posterior(
                mine, pairs[distance, layer], uses[distance, layer], ratios,
                predictor.posterior,
            )  # fmt: skip
            at_token = slice(token * ranks, (token + 1) * ranks)
            _rank(predictor.posterior, ids[d, at_token], scores[d, at_token])


@compiled
def cut_to_used(inputs: Inputs, forecasts: Forecasts) -> None:
    """A token that uses fewer than top-k in this layer does so in the later ones of the pass."""
    tokens, used = inputs.tokens, inputs.used_ranks
    chosen = inputs.expert_ids
    shapes, ids = forecasts.shapes, forecasts.ids
    for token in range(tokens):
        count = 0
        for i in range(token * used, (token + 1) * used):
            count += chosen[i] >= 0
        if count == used:
            continue
        for d in range(forecasts.count):
            ranks = shapes[d, 2]
            if forecasts.steps[d] == inputs.step and shapes[d, 1] == tokens:
                ids[d, token * ranks + min(count, ranks) : (token + 1) * ranks] = -1


@compiled
def _posterior(
    chosen: Ints,
    pairs: NDArray[np.float64],
    uses: NDArray[np.float64],
    ratios: NDArray[np.float64],
    posterior: NDArray[np.float64],
) -> None:
    """How likely each expert is, up to a factor. Inner loops run over neighbours in memory; the
    quotients of an expert are made when the first token asks for them (the last column says)."""
    experts = len(uses)
    for b in range(experts):
        posterior[b] = uses[b] + 1.0
    for a in chosen:
        if a < 0:
            continue
        row, ratio = pairs[a], ratios[a]
        if ratio[experts] == 0.0:
            ratio[experts] = 1.0
            for b in range(experts):
                ratio[b] = (row[b] + _SMOOTH) / (uses[b] + _SMOOTH * experts)
        for b in range(experts):
            posterior[b] *= ratio[b]


@compiled
def _rank(posterior: NDArray[np.float64], ids: Ints, scores: NDArray[np.float64]) -> None:
    """The likeliest experts, best first, the lower number among equals; normalised, in single
    precision as a router's scores are."""
    total = 0.0
    held = 0
    for b in range(len(posterior)):
        value = posterior[b]
        total += value
        if held == len(ids) and value <= scores[held - 1]:
            continue
        place = held if held < len(ids) else held - 1
        while place > 0 and scores[place - 1] < value:
            ids[place] = ids[place - 1]
            scores[place] = scores[place - 1]
            place -= 1
        ids[place] = b
        scores[place] = value
        held = min(held + 1, len(ids))
    for rank in range(len(ids)):
        scores[rank] = np.float64(np.float32(scores[rank] / total))


@compiled
def expect(
    setup: Setup, inputs: Inputs, forecasts: Forecasts, predictor: Predictor, count: int
) -> None:
    """Remember the forecasts, to be judged when their layers are routed."""
    ahead = setup.lookahead
    shapes, ids = forecasts.shapes, forecasts.ids
    waiting, pending = predictor.pending_shapes, predictor.pending
    for d in range(count):
        if forecasts.trust[d] > 0.0:
            continue  # its maker judges it
        step, layer = forecasts.steps[d], shapes[d, 0]
        address, distance = step * setup.layers + layer, distance_to(setup, inputs, step, layer)
        slot, size = address % (ahead + 1), shapes[d, 1] * shapes[d, 2]
        waiting[slot, distance, 0] = address
        waiting[slot, distance, 1], waiting[slot, distance, 2] = shapes[d, 1], shapes[d, 2]
        pending[slot, distance, :size] = ids[d, :size]


# Whether CPU workers read ahead into their caches, and which experts of the next layer: what the
# CPU may be given there. Compiled.

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
