"""What later layers will want, and how often that came true. Compiled, over the buffer.

Where the body cannot forecast, naive Bayes over adjacent layers does: the experts a token chose in
layer l speak for those it will choose in layer l + d. Nothing is trained beforehand. A forecast is
addressed by (step, layer), so it may speak about another pass than the one that made it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import fields as at
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import NOTHING
from moesaic.policies.timelines import Ints

_SMOOTH = 0.1
_WEIGHT = 0.02  # of the newest layer in the running share of right forecasts


@compiled
def fill_forecast(
    s: Ints, step: int, layer: int, ranked: Ints, scores: NDArray[np.float32], trust: float = 0.0
) -> None:
    """The body's next forecast, of a layer of this pass or another, cut to top-k; nearest layer
    first. One that is not about the next LOOKAHEAD layers is of no use yet, and left out. A
    `trust` of 0 is not known."""
    if not 0 <= distance_to(s, step, layer) < s[at.LOOKAHEAD]:
        return
    number = s[at.FORECASTS]
    s[at.FORECASTS] += 1
    tokens, ranks = ranked.shape[0], min(ranked.shape[1], s[at.TOP_K])
    if s[at.ORACLE]:
        ranks = ranked.shape[1]  # one row with every expert as often as it has tokens
    shape = at.ints(s, at.FORECAST_SHAPES).reshape(s[at.LOOKAHEAD], 3)[number]
    shape[0], shape[1], shape[2] = layer, tokens, ranks
    at.ints(s, at.FORECAST_STEPS)[number] = step
    at.floats(s, at.FORECAST_TRUST)[number] = trust
    ids = at.ints(s, at.FORECAST_IDS).reshape(s[at.LOOKAHEAD], s[at.ENTRIES])[number]
    given = at.floats(s, at.FORECAST_SCORES).reshape(s[at.LOOKAHEAD], s[at.ENTRIES])[number]
    for token in range(tokens):
        for rank in range(ranks):
            ids[token * ranks + rank] = ranked[token, rank]
            given[token * ranks + rank] = scores[token, rank]


@compiled
def distance_to(s: Ints, step: int, layer: int) -> int:
    """How many layers lie between the one decided and another, of this pass or another."""
    return int((step - s[at.STEP]) * s[at.LAYERS] + layer - s[at.LAYER] - 1)


@compiled
def observe_routing(s: Ints) -> None:
    """A layer was routed: learn from it, and judge what was forecast for it."""
    if s[at.LOOKAHEAD] == 0:
        return
    if not s[at.BODY_FORECASTS] and s[at.PREFETCH_RULE] != NOTHING:
        if s[at.RESTING] == 0:
            _count(s, s[at.LOOKAHEAD])
        elif s[at.READ_AHEAD] > 0 and s[at.TOKENS] == 1:
            _count(s, 1)
    _judge(s)


@compiled
def _count(s: Ints, most: int) -> None:
    """Pairs of experts chosen by one token in this layer and in one of so many before."""
    ahead, layer, experts = s[at.LOOKAHEAD], s[at.LAYER], s[at.EXPERTS]
    tokens, used = s[at.TOKENS], s[at.USED_RANKS]
    chosen = at.ints(s, at.EXPERT_IDS)
    shapes = at.ints(s, at.HISTORY_SHAPES).reshape(ahead + 1, 3)
    history = at.ints(s, at.HISTORY).reshape(ahead + 1, s[at.ENTRIES])
    uses = at.floats(s, at.USES).reshape(ahead, s[at.LAYERS], experts)
    if layer == 0:
        shapes[:, 0] = -1
    for i in range(tokens * used):
        if chosen[i] >= 0:
            uses[:most, layer, chosen[i]] += 1.0
    pairs = at.floats(s, at.PAIRS).reshape(ahead, s[at.LAYERS], experts, experts)
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
def _judge(s: Ints) -> None:
    """Compare what was forecast for this layer with what it chose."""
    ahead, tokens, used = s[at.LOOKAHEAD], s[at.TOKENS], s[at.USED_RANKS]
    address = s[at.STEP] * s[at.LAYERS] + s[at.LAYER]
    shapes = at.ints(s, at.PENDING_SHAPES).reshape(ahead + 1, ahead, 3)[address % (ahead + 1)]
    pending = at.ints(s, at.PENDING).reshape(ahead + 1, ahead, s[at.ENTRIES])[address % (ahead + 1)]
    trust, chosen = at.floats(s, at.TRUST), at.ints(s, at.EXPERT_IDS)
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
        s[at.JUDGED] = 1
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
def predict(s: Ints) -> int:
    """Forecast the next layers from the pairs seen so far; returns how many."""
    layer, experts, ahead = s[at.LAYER], s[at.EXPERTS], s[at.LOOKAHEAD]
    tokens, used, ranks = s[at.TOKENS], s[at.USED_RANKS], s[at.TOP_K]
    count = int(min(ahead, s[at.LAYERS] - 1 - layer))
    shapes = at.ints(s, at.FORECAST_SHAPES).reshape(ahead, 3)
    ids = at.ints(s, at.FORECAST_IDS).reshape(ahead, s[at.ENTRIES])
    scores = at.floats(s, at.FORECAST_SCORES).reshape(ahead, s[at.ENTRIES])
    chosen = at.ints(s, at.EXPERT_IDS)
    pairs = at.floats(s, at.PAIRS).reshape(ahead, s[at.LAYERS], experts, experts)
    uses = at.floats(s, at.USES).reshape(s[at.LOOKAHEAD], s[at.LAYERS], experts)
    posterior = at.floats(s, at.POSTERIOR)
    ratios = at.floats(s, at.RATIOS).reshape(experts, experts + 1)
    for d in range(count):
        later = layer + d + 1
        shapes[d, 0], shapes[d, 1], shapes[d, 2] = later, tokens, ranks
        at.ints(s, at.FORECAST_STEPS)[d] = s[at.STEP]
        at.floats(s, at.FORECAST_TRUST)[d] = 0.0
        ratios[:, experts] = 0.0
        for token in range(tokens):
            mine = chosen[token * used : (token + 1) * used]
            _posterior(mine, pairs[d, later], uses[d, later], ratios, posterior)
            at_token = slice(token * ranks, (token + 1) * ranks)
            _rank(posterior, ids[d, at_token], scores[d, at_token])
    return count


@compiled
def likelihoods(s: Ints) -> NDArray[np.float64]:
    """How likely the only token is to choose each expert of the next layer, up to a factor."""
    experts, later = s[at.EXPERTS], s[at.LAYER] + 1
    pairs = at.floats(s, at.PAIRS).reshape(s[at.LOOKAHEAD], s[at.LAYERS], experts, experts)
    uses = at.floats(s, at.USES).reshape(s[at.LOOKAHEAD], s[at.LAYERS], experts)
    ratios = at.floats(s, at.RATIOS).reshape(experts, experts + 1)
    ratios[:, experts] = 0.0
    posterior = at.floats(s, at.POSTERIOR)
    mine = at.ints(s, at.EXPERT_IDS)[: s[at.USED_RANKS]]
    _posterior(mine, pairs[0, later], uses[0, later], ratios, posterior)
    return posterior


@compiled
def complete(s: Ints) -> None:
    """Predict the tokens that the forecasts of this pass say nothing about."""
    experts, tokens, used = s[at.EXPERTS], s[at.TOKENS], s[at.USED_RANKS]
    shapes = at.ints(s, at.FORECAST_SHAPES).reshape(s[at.LOOKAHEAD], 3)
    ids = at.ints(s, at.FORECAST_IDS).reshape(s[at.LOOKAHEAD], s[at.ENTRIES])
    scores = at.floats(s, at.FORECAST_SCORES).reshape(s[at.LOOKAHEAD], s[at.ENTRIES])
    chosen = at.ints(s, at.EXPERT_IDS)
    pairs = at.floats(s, at.PAIRS).reshape(s[at.LOOKAHEAD], s[at.LAYERS], experts, experts)
    uses = at.floats(s, at.USES).reshape(s[at.LOOKAHEAD], s[at.LAYERS], experts)
    ratios = at.floats(s, at.RATIOS).reshape(experts, experts + 1)
    for d in range(s[at.FORECASTS]):
        layer, ranks = shapes[d, 0], shapes[d, 2]
        if at.ints(s, at.FORECAST_STEPS)[d] != s[at.STEP] or shapes[d, 1] != tokens:
            continue
        distance, begun = distance_to(s, s[at.STEP], layer), False
        for token in range(tokens):
            if ids[d, token * ranks] >= 0:
                continue
            if not begun:
                ratios[:, experts] = 0.0
                begun = True
            mine = chosen[token * used : (token + 1) * used]
            _posterior(
                mine, pairs[distance, layer], uses[distance, layer], ratios,
                at.floats(s, at.POSTERIOR),
            )  # fmt: skip
            at_token = slice(token * ranks, (token + 1) * ranks)
            _rank(at.floats(s, at.POSTERIOR), ids[d, at_token], scores[d, at_token])


@compiled
def cut_to_used(s: Ints) -> None:
    """A token that uses fewer than top-k in this layer does so in the later ones of the pass."""
    tokens, used = s[at.TOKENS], s[at.USED_RANKS]
    chosen = at.ints(s, at.EXPERT_IDS)
    shapes = at.ints(s, at.FORECAST_SHAPES).reshape(s[at.LOOKAHEAD], 3)
    ids = at.ints(s, at.FORECAST_IDS).reshape(s[at.LOOKAHEAD], s[at.ENTRIES])
    for token in range(tokens):
        count = 0
        for i in range(token * used, (token + 1) * used):
            count += chosen[i] >= 0
        if count == used:
            continue
        for d in range(s[at.FORECASTS]):
            ranks = shapes[d, 2]
            if at.ints(s, at.FORECAST_STEPS)[d] == s[at.STEP] and shapes[d, 1] == tokens:
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
def expect(s: Ints, count: int) -> None:
    """Remember the forecasts, to be judged when their layers are routed."""
    ahead = s[at.LOOKAHEAD]
    shapes = at.ints(s, at.FORECAST_SHAPES).reshape(ahead, 3)
    ids = at.ints(s, at.FORECAST_IDS).reshape(ahead, s[at.ENTRIES])
    waiting = at.ints(s, at.PENDING_SHAPES).reshape(ahead + 1, ahead, 3)
    pending = at.ints(s, at.PENDING).reshape(ahead + 1, ahead, s[at.ENTRIES])
    for d in range(count):
        if at.floats(s, at.FORECAST_TRUST)[d] > 0.0:
            continue  # its maker judges it
        step = at.ints(s, at.FORECAST_STEPS)[d]
        address, distance = step * s[at.LAYERS] + shapes[d, 0], distance_to(s, step, shapes[d, 0])
        slot, size = address % (ahead + 1), shapes[d, 1] * shapes[d, 2]
        waiting[slot, distance, 0] = address
        waiting[slot, distance, 1], waiting[slot, distance, 2] = shapes[d, 1], shapes[d, 2]
        pending[slot, distance, :size] = ids[d, :size]
