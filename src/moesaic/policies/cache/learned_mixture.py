"""The averages of `learned-speed` and what follows a token's experts, mixed by how well each has
forecast what tokens use.

`learned-speed` weighs whole forecasts, and one soon has nearly all weight. Here every layer learns
the mixture that has given the experts used since the highest probability: after every step a
forecast's share moves towards the part of that probability which was its own (the EM algorithm,
online). Judged are forecasts of up to `lag` steps ago, since a slot is taken for some steps, and
for more where moving an expert costs something. The values are that mixture; a layer's add up to 1.

What follows the experts of the last token (followers.py) is forecast as counted, and sharpened."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.base import Cache
from moesaic.policies.cache.followers import (
    forecast_followers,
    learn_followers,
    only_token,
    planes_for,
    sharpen,
    start_followers,
)
from moesaic.policies.cache.learned_speed import (
    JUDGES,
    LAG_WHERE_MOVES_COST,
    SPEEDS,
    UNSEEN,
    add_step,
    bring_up_to_date,
    judged_planes,
)
from moesaic.policies.compiled import compiled
from moesaic.policies.records import NUMBERS, Floats
from moesaic.policies.timelines import Ints

_FASTEST, _MEAN = 0, len(SPEEDS) - 1
FOLLOWERS, SHARPENED = len(SPEEDS), len(SPEEDS) + 1  # planes of `memory` behind those of the speeds
FORECASTS = SHARPENED + 1
PAIRS = 2 * FORECASTS  # the first plane of the followers' pairs
LAG_WHERE_FREE = 2
_NEWEST = 0.1  # weight of the newest step in a forecast's share of the mixture
_LEAST = 1e-4  # share of a forecast, so that it can come back
TOP_P, LAG = 0, 1  # in `numbers`; then, per layer, steps seen and the forecasts' shares
PER_LAYER = 1 + FORECASTS


@compiled
def observe_learned_mixture(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    """`memory` holds the forecasts, those of up to `lag` steps ago, then the followers' pairs."""
    first = NUMBERS + layer * PER_LAYER
    count, shares = numbers[first : first + 1], numbers[first + 1 : first + PER_LAYER]
    used, scored = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    uses, total = add_step(experts, ranked, scores, int(numbers[TOP_P]), used, scored)
    if uses == 0.0:
        return
    step = int(count[0])
    judged = judged_planes(memory, FORECASTS, layer, step, int(numbers[LAG]))
    if step > 0:
        _judge(memory[judged : judged + FORECASTS], layer, experts, step, shares)
    count[0] += 1.0
    bring_up_to_date(
        memory, layer, used, 1.0 / uses, scored, 1.0 / total, 1.0 / count[0], shares, values[layer]
    )
    followers, sharpened = memory[FOLLOWERS, layer], memory[SHARPENED, layer]
    token = only_token(experts)
    alone = experts[max(token, 0), : experts.shape[1] if token >= 0 else 0]
    learn_followers(memory[PAIRS:], layer, alone, used, uses)
    if token >= 0:
        forecast_followers(memory[PAIRS:], layer, alone, uses, followers)
    else:  # the texts of a batch have no last token
        followers[:] = memory[_FASTEST, layer]
    sharpen(followers, memory[_MEAN, layer], sharpened)
    for expert in range(values.shape[1]):
        values[layer, expert] += (
            shares[FOLLOWERS] * followers[expert] + shares[SHARPENED] * sharpened[expert]
        )


@compiled
def _judge(
    forecasts: NDArray[np.float64],
    layer: int,
    experts: Ints,
    step: int,
    shares: NDArray[np.float64],
) -> None:
    """Move every forecast's share towards its part of the probability that the mixture gave to what
    was used. A step of many tokens counts as one: they come at once, and are placed for together.
    """
    apart = -(-experts.shape[0] // JUDGES)
    unseen = UNSEEN / forecasts.shape[2]
    likely, own, judged = np.zeros(len(shares)), np.zeros(len(shares)), 0
    for token in range(step % apart, experts.shape[0], apart):
        for rank in range(experts.shape[1]):
            expert = experts[token, rank]
            if expert < 0:
                continue
            judged += 1
            total = 0.0
            for plane in range(len(shares)):
                share = max(forecasts[plane, layer, expert], 0.0)
                likely[plane] = shares[plane] * ((1.0 - UNSEEN) * share + unseen)
                total += likely[plane]
            for plane in range(len(shares)):
                own[plane] += likely[plane] / total
    if judged == 0:
        return
    total = 0.0
    for plane in range(len(shares)):
        new = (1.0 - _NEWEST) * shares[plane] + _NEWEST * own[plane] / judged
        shares[plane] = max(new, _LEAST)
        total += shares[plane]
    for plane in range(len(shares)):
        shares[plane] /= total


class LearnedMixture(Cache):
    rule = staticmethod(observe_learned_mixture)
    numbers_per_layer = PER_LAYER
    horizon = 6

    def __init__(self, layers: int, experts: int, top_k: int, lag: int | None = None) -> None:
        self.planes = PAIRS + planes_for(experts)
        super().__init__(layers, experts, top_k)
        self._top_k, self._lag, self._rows = top_k, lag, experts
        self.numbers[TOP_P] = min(2 * top_k, experts)
        self.numbers[NUMBERS:].reshape(layers, PER_LAYER)[:, 1:] = 1.0 / FORECASTS
        start_followers(self.memory[PAIRS:], 1.0 / experts)
        self.set_costly_moves(False)

    def set_costly_moves(self, costly: bool) -> None:
        auto = LAG_WHERE_MOVES_COST if costly else LAG_WHERE_FREE
        self.numbers[LAG] = auto if self._lag is None else self._lag

    def start_from(self, counts: NDArray[np.int64]) -> None:
        """A profile counts as steps of one token seen before."""
        uses = counts.sum(axis=1)
        profiled = uses > 0
        shares = counts[profiled] / uses[profiled, None]
        self.memory[: PAIRS + self._rows, profiled] = shares
        self.values[profiled] = shares
        self.numbers[NUMBERS::PER_LAYER] = np.where(profiled, np.maximum(uses // self._top_k, 1), 0)
