"""Running averages at five speeds, weighed by how well each has foretold what tokens use.

How fast the experts of a text change differs from model to model and from layer to layer: in some
routing the last few tokens tell what comes next, in other only the mean over all of them does, and
a cache that follows the last few there moves experts after noise. So every layer keeps several
averages of the same routing, makes forecasts of them, and, as a Bayesian mixture does, weighs each
forecast by the probability it has given to the experts that were used since: one of up to `lag`
steps ago. Where moving costs something an expert must be worth its slot for some steps; where it
costs nothing, for the next one. The values are that mixture; a layer's add up to 1. The mean is
one of uses, the others are of scores, which stand for uses that came close."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.base import LEARNED_SPEED, NUMBERS, Cache
from moesaic.policies.cache.scores import TINY, add_scores, add_uses
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

SPEEDS = (0.3, 0.1, 0.03, 0.01, 0.0)  # weight of the newest step; 0: a plain mean of all steps
_MEAN = len(SPEEDS) - 1
_HALVES = 3  # speeds whose average is also a forecast together with the mean
# Speed and speed: a forecast is half the one's average and half the other's.
FORECASTS = (
    *((speed, speed) for speed in range(len(SPEEDS))),
    *((speed, _MEAN) for speed in range(_HALVES)),
)
LAG_WHERE_MOVES_COST = 8
_SPEEDS, _FORECASTS = len(SPEEDS), len(FORECASTS)
_KEEP = 0.99  # of what was learned, from step to step
_UNSEEN = 0.05  # of probability, spread over all experts: nothing is impossible
_JUDGES = 8  # tokens of a large step that forecasts are judged by
_SMALL = 1e-200  # a product of probabilities that becomes a logarithm before it is nothing
TOP_P, LAG = 0, 1  # in `numbers`; then, per layer, steps seen and the forecasts' log weights
PER_LAYER = 1 + _FORECASTS


@compiled
def observe_learned_speed(
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float64],
    values: NDArray[np.float64],
    memory: NDArray[np.float64],
    numbers: NDArray[np.float64],
) -> None:
    """`memory` holds an average per speed, then the same of up to `lag` steps ago."""
    first = NUMBERS + layer * PER_LAYER
    count, weights = numbers[first : first + 1], numbers[first + 1 : first + PER_LAYER]
    used, scored = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    uses = add_uses(experts, used)
    total = add_scores(ranked, scores, int(numbers[TOP_P]), scored)
    if uses == 0.0 or not 0.0 <= total < np.inf:  # or a model that is broken: NaN would stay
        return
    if total == 0.0:
        scored, total = used, uses
    step, lag = int(count[0]), int(numbers[LAG])
    if lag > 1 and ((step + layer) % lag == 0 or step == 1):  # not all layers in one step
        memory[_SPEEDS:, layer] = memory[:_SPEEDS, layer]
    if step > 0:
        _judge(memory[_SPEEDS if lag > 1 else 0 :], layer, experts, step, weights)
    count[0] += 1.0
    _bring_up_to_date(
        memory, layer, used, 1.0 / uses, scored, 1.0 / total, 1.0 / count[0], _shares_of(weights),
        values[layer],
    )  # fmt: skip


@compiled
def _judge(
    averages: NDArray[np.float64],
    layer: int,
    experts: Ints,
    step: int,
    weights: NDArray[np.float64],
) -> None:
    """A step of many tokens counts as one: they come at once, and are placed for together."""
    apart = -(-experts.shape[0] // _JUDGES)
    able, unseen = 0, _UNSEEN / averages.shape[2]
    likely, products, shares = np.zeros(_FORECASTS), np.ones(_FORECASTS), np.zeros(_SPEEDS)
    for token in range(step % apart, experts.shape[0], apart):
        used = False
        for rank in range(experts.shape[1]):
            expert = experts[token, rank]
            if expert < 0:
                continue
            used = True
            for speed in range(_SPEEDS):
                share = max(averages[speed, layer, expert], 0.0)
                shares[speed] = (1.0 - _UNSEEN) * share + unseen
            least = _multiply(shares, products)
            if least < _SMALL:
                for forecast in range(_FORECASTS):
                    likely[forecast] += np.log(products[forecast])
                    products[forecast] = 1.0
        able += used
    if able == 0:
        return
    best = -np.inf
    for forecast in range(_FORECASTS):
        likely[forecast] += np.log(products[forecast])
        weights[forecast] = _KEEP * weights[forecast] + likely[forecast] / able
        best = max(best, weights[forecast])
    for forecast in range(_FORECASTS):
        weights[forecast] -= best  # only differences count


@compiled
def _multiply(shares: NDArray[np.float64], products: NDArray[np.float64]) -> float:
    """Every forecast's product by what it says of an expert; returns the least product."""
    least = 1.0
    for speed in range(_SPEEDS):
        products[speed] *= shares[speed]
        least = min(least, products[speed])
    for speed in range(_HALVES):
        products[_SPEEDS + speed] *= 0.5 * (shares[speed] + shares[_MEAN])
        least = min(least, products[_SPEEDS + speed])
    return least


@compiled
def _shares_of(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each speed's average in the mixture of all forecasts."""
    shares, total = np.zeros(_SPEEDS), 0.0
    for speed in range(_SPEEDS):
        shares[speed] = np.exp(weights[speed])
        total += shares[speed]
    for speed in range(_HALVES):
        weight = np.exp(weights[_SPEEDS + speed])
        shares[speed] += 0.5 * weight
        shares[_MEAN] += 0.5 * weight
        total += weight
    return shares / total


@compiled
def _bring_up_to_date(
    memory: NDArray[np.float64], layer: int, used: NDArray[np.float64], of_uses: float,
    scored: NDArray[np.float64], of_scores: float, least: float, shares: NDArray[np.float64],
    row: NDArray[np.float64],
) -> None:  # fmt: skip
    """All averages with what is new; `row` becomes their mixture. `least`: the weight of a step in
    the mean of all."""
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
    rule = LEARNED_SPEED
    planes = 2 * _SPEEDS
    numbers_per_layer = PER_LAYER
    horizon = 6

    def __init__(self, layers: int, experts: int, top_k: int, lag: int | None = None) -> None:
        super().__init__(layers, experts, top_k)
        self._top_k, self._lag = top_k, lag
        self.numbers[TOP_P] = min(2 * top_k, experts)
        self.set_costly_moves(False)

    def set_costly_moves(self, costly: bool) -> None:
        auto = LAG_WHERE_MOVES_COST if costly else 1
        self.numbers[LAG] = auto if self._lag is None else self._lag

    def start_from(self, counts: NDArray[np.int64]) -> None:
        """A profile counts as steps of one token seen before."""
        uses = counts.sum(axis=1)
        profiled = uses > 0
        shares = counts[profiled] / uses[profiled, None]
        self.memory[:, profiled] = shares
        self.values[profiled] = shares
        self.numbers[NUMBERS::PER_LAYER] = np.where(profiled, np.maximum(uses // self._top_k, 1), 0)
