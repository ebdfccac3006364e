"""Running averages at five speeds, and what follows a token's experts, weighed by how well each has
forecast what tokens use.

How fast the experts of a text change differs from model to model and from layer to layer: in some
routing the last few tokens show the next, in other only the mean over all of them does, and
a cache that follows the last few there moves experts after noise. So every layer keeps several
averages of the same routing, makes forecasts of them, and, as a Bayesian mixture does, weighs each
forecast by the probability it has given to the experts that were used since: one of up to `lag`
steps ago. Where moving costs something an expert must be worth its slot for some steps; where it
costs nothing, for the next one. The values are that mixture; a layer's add up to 1. The mean is
one of uses, the others are of scores, which stand for uses that came close.

A further forecast are the experts that followed those of the last token so far (followers.py):
texts come back to a topic, and its experts together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.base import Cache
from moesaic.policies.cache.followers import (
    forecast_followers,
    learn_followers,
    only_token,
    planes_for,
    start_followers,
)
from moesaic.policies.cache.scores import TINY, add_scores, add_uses
from moesaic.policies.compiled import compiled
from moesaic.policies.records import NUMBERS, Floats
from moesaic.policies.timelines import Ints

SPEEDS = (0.3, 0.1, 0.03, 0.01, 0.0)  # weight of the newest step; 0: a plain mean of all steps
_MEAN = len(SPEEDS) - 1
_HALVES = 3  # speeds whose average is also a forecast together with the mean
_SPEEDS = len(SPEEDS)
_FOLLOWERS = _SPEEDS  # the plane of `memory` behind those of the speeds
# Plane and plane: a forecast is half the one and half the other. Those of followers come last.
OF_SPEEDS = (
    *((speed, speed) for speed in range(_SPEEDS)),
    *((speed, _MEAN) for speed in range(_HALVES)),
)
FORECASTS = (*OF_SPEEDS, *((plane, _FOLLOWERS) for plane in range(_FOLLOWERS + 1)))
_FIRST, _SECOND = (np.array(half) for half in zip(*FORECASTS, strict=True))
LAG_WHERE_MOVES_COST = 8
_KEEP = 0.99  # of what was learned, from step to step
_SMALL = 1e-200  # a product of probabilities that becomes a logarithm before it is nothing
TOP_P, LAG, PLANES = 0, 1, 2  # in `numbers`; then, per layer, steps seen and forecasts' log weights
PER_LAYER = 1 + len(FORECASTS)


@compiled
def observe_learned_speed(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    """`memory` holds an average per speed and the forecast of followers, the same of up to `lag`
    steps ago, then the followers' pairs. Without followers there are no such planes."""
    first = NUMBERS + layer * PER_LAYER
    planes = int(numbers[PLANES])
    follow = planes > _FOLLOWERS
    forecasts = len(_FIRST) if follow else len(OF_SPEEDS)
    count, weights = numbers[first : first + 1], numbers[first + 1 : first + 1 + forecasts]
    used, scored = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    uses, total = add_step(experts, ranked, scores, int(numbers[TOP_P]), used, scored)
    if uses == 0.0:
        return
    step = int(count[0])
    judged = judged_planes(memory, planes, layer, step, int(numbers[LAG]))
    if step > 0:
        _judge(memory[judged : judged + planes], layer, experts, step, weights)
    count[0] += 1.0
    shares = _shares_of(weights, planes)
    bring_up_to_date(
        memory, layer, used, 1.0 / uses, scored, 1.0 / total, 1.0 / count[0], shares, values[layer]
    )
    if follow:
        pairs, followers = memory[2 * planes :], memory[_FOLLOWERS, layer]
        token = only_token(experts)
        alone = experts[max(token, 0), : experts.shape[1] if token >= 0 else 0]
        learn_followers(pairs, layer, alone, used, uses)
        if token >= 0:
            forecast_followers(pairs, layer, alone, uses, followers)
        else:  # the texts of a batch have no last token
            followers[:] = memory[0, layer]
        for expert in range(values.shape[1]):
            values[layer, expert] += shares[_FOLLOWERS] * followers[expert]


@compiled
def _judge(
    averages: NDArray[np.float64],
    layer: int,
    experts: Ints,
    step: int,
    weights: NDArray[np.float64],
) -> None:
    """A step of many tokens counts as one: they come at once, and are placed for together."""
    apart = -(-experts.shape[0] // JUDGES)
    able, unseen = 0, UNSEEN / averages.shape[2]
    likely, products = np.zeros(len(weights)), np.ones(len(weights))
    shares = np.zeros(len(averages))
    for token in range(step % apart, experts.shape[0], apart):
        used = False
        for rank in range(experts.shape[1]):
            expert = experts[token, rank]
            if expert < 0:
                continue
            used = True
            for plane in range(len(averages)):
                share = max(averages[plane, layer, expert], 0.0)
                shares[plane] = (1.0 - UNSEEN) * share + unseen
            least = _multiply(shares, products)
            if least < _SMALL:
                for forecast in range(len(weights)):
                    likely[forecast] += np.log(products[forecast])
                    products[forecast] = 1.0
        able += used
    if able == 0:
        return
    best = -np.inf
    for forecast in range(len(weights)):
        likely[forecast] += np.log(products[forecast])
        weights[forecast] = _KEEP * weights[forecast] + likely[forecast] / able
        best = max(best, weights[forecast])
    for forecast in range(len(weights)):
        weights[forecast] -= best  # only differences count


@compiled
def _multiply(shares: NDArray[np.float64], products: NDArray[np.float64]) -> float:
    """Every forecast's product by what it says of an expert; returns the least product."""
    least = 1.0
    for forecast in range(len(products)):
        products[forecast] *= 0.5 * (shares[_FIRST[forecast]] + shares[_SECOND[forecast]])
        least = min(least, products[forecast])
    return least


@compiled
def _shares_of(weights: NDArray[np.float64], planes: int) -> NDArray[np.float64]:
    """The share of each plane in the mixture of all forecasts."""
    shares, total = np.zeros(planes), 0.0
    for forecast in range(len(weights)):
        weight = np.exp(weights[forecast])
        shares[_FIRST[forecast]] += 0.5 * weight
        shares[_SECOND[forecast]] += 0.5 * weight
        total += weight
    return shares / total


@compiled
def bring_up_to_date(
    memory: NDArray[np.float64], layer: int, used: NDArray[np.float64], of_uses: float,
    scored: NDArray[np.float64], of_scores: float, least: float, shares: NDArray[np.float64],
    row: NDArray[np.float64],
) -> None:  # fmt: skip
    """All averages with what is new; `row` becomes their part of the mixture. `least`: the weight
    of a step in the mean of all."""
    for expert in range(len(row)):
        row[expert] = 0.0
    for speed in range(_SPEEDS):
        newest, share = max(SPEEDS[speed], least), shares[speed]
        scores = SPEEDS[speed] > 0.0
        new, scaled = (scored, of_scores) if scores else (used, of_uses)
        old, scaled = 1.0 - newest, newest * scaled
        for expert in range(len(row)):
            now = old * memory[speed, layer, expert] + scaled * new[expert]
            now = now if now > TINY else 0.0
            memory[speed, layer, expert] = now
            row[expert] += share * now


class LearnedSpeed(Cache):
    rule = staticmethod(observe_learned_speed)
    numbers_per_layer = PER_LAYER
    horizon = 6

    def __init__(
        self, layers: int, experts: int, top_k: int, lag: int | None = None, followers: bool = False
    ) -> None:
        planes = _FOLLOWERS + followers
        self._pairs, self._rows = 2 * planes, experts if followers else 0
        self.planes = self._pairs + (planes_for(experts) if followers else 0)
        super().__init__(layers, experts, top_k)
        self._top_k, self._lag = top_k, lag
        self.numbers[TOP_P], self.numbers[PLANES] = min(2 * top_k, experts), planes
        if followers:
            start_followers(self.memory[self._pairs :], 1.0 / experts)
        self.set_costly_moves(False)

    def set_costly_moves(self, costly: bool) -> None:
        auto = LAG_WHERE_MOVES_COST if costly else 1
        self.numbers[LAG] = auto if self._lag is None else self._lag

    def start_from(self, counts: NDArray[np.int64]) -> None:
        """A profile counts as steps of one token seen before."""
        uses = counts.sum(axis=1)
        profiled = uses > 0
        shares = counts[profiled] / uses[profiled, None]
        self.memory[: self._pairs, profiled] = shares
        self.values[profiled] = shares
        self.memory[self._pairs : self._pairs + self._rows, profiled] = shares
        self.numbers[NUMBERS::PER_LAYER] = np.where(profiled, np.maximum(uses // self._top_k, 1), 0)


# What the caches share that learn which of several forecasts to follow: what a step says about
# the experts of a layer, and which forecasts it judges.

UNSEEN = 0.05  # of probability, spread over all experts: nothing is impossible
JUDGES = 8  # tokens of a large step that forecasts are judged by


@compiled
def add_step(
    experts: Ints, ranked: Ints, scores: Floats, top_p: int, used: Floats, scored: Floats
) -> tuple[float, float]:
    """The step's uses of every expert and its scores, added to `used` and `scored`; without scores
    uses stand for them. Returns what either adds up to; 0.0 where there is nothing to learn."""
    uses = add_uses(experts, used)
    total = add_scores(ranked, scores, top_p, scored)
    if uses == 0.0 or not 0.0 <= total < np.inf:  # or a model that is broken: NaN would stay
        return 0.0, 0.0
    if total == 0.0:
        scored[:] = used
        return uses, uses
    return uses, total


@compiled
def judged_planes(memory: Floats, planes: int, layer: int, step: int, lag: int) -> int:
    """The first of so many planes of forecasts that this step judges. The first planes of `memory`
    are the newest ones; the next as many, with a `lag`, are those of up to so many steps ago."""
    if lag <= 1:
        return 0
    if (step + layer) % lag == 0 or step == 1:  # not all layers in one step
        memory[planes : 2 * planes, layer] = memory[:planes, layer]
    return planes
