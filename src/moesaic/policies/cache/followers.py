"""Which experts the next token of a layer uses after one that used these: counted pairs.

A running share per pair: of the uses that followed a use of expert a in the same layer, those of
expert b. What follows a token is forecast as the mean of its experts' rows; and sharpened, as that
mean says less of an expert than its rows together do. Only steps of one token
are counted and forecast from: those of a batch belong to several texts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.scores import TINY
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

NEWEST = 0.03  # weight of the newest pair, once a row has been followed 1 / NEWEST times
_EVEN = 0.1  # part of a uniform share that every expert has at least, when it is divided by
BESIDE_ROWS = 2  # planes behind the rows: how often each row was followed, and the last token's use


def planes_for(experts: int) -> int:
    return experts + BESIDE_ROWS


@compiled
def only_token(experts: Ints) -> int:
    """The one token of [tokens, ranks] that uses experts, or -1 where none or several do."""
    found = -1
    for token in range(experts.shape[0]):
        if experts[token].max() >= 0:
            if found >= 0:
                return -1
            found = token
    return found


@compiled
def learn_followers(
    pairs: NDArray[np.float64], layer: int, token: Ints, used: NDArray[np.float64], uses: float
) -> None:
    """`pairs` are [planes, layers, experts], `token` the experts of the one token, or empty;
    `used` are the step's uses of each expert, `uses` all of them."""
    count = pairs.shape[2]
    seen, last = pairs[count, layer], pairs[count + 1, layer]
    for before in range(count):
        if last[before] > 0.0:
            last[before] = 0.0
            if len(token) > 0:
                _follow(pairs[before, layer], used, uses, max(NEWEST, 1.0 / (seen[before] + 2.0)))
                seen[before] += 1.0
    for expert in token:
        if expert >= 0:
            last[expert] = 1.0


@compiled
def _follow(
    row: NDArray[np.float64], used: NDArray[np.float64], uses: float, newest: float
) -> None:
    old, new = 1.0 - newest, newest / uses
    for expert in range(len(row)):
        row[expert] = old * row[expert] + new * used[expert]


@compiled
def forecast_followers(
    pairs: NDArray[np.float64], layer: int, token: Ints, uses: float, out: NDArray[np.float64]
) -> None:
    """What the token after this one uses, as shares that add up to 1."""
    for expert in range(len(out)):
        out[expert] = 0.0
    for before in token:
        if before >= 0:
            row = pairs[before, layer]
            for expert in range(len(out)):
                out[expert] += row[expert] / uses


@compiled
def sharpen(
    followers: NDArray[np.float64], mean: NDArray[np.float64], out: NDArray[np.float64]
) -> None:
    """Followers times how much more often than usual they follow, as shares that add up to 1."""
    even, whole = _EVEN / len(mean), 0.0
    for expert in range(len(out)):
        share = followers[expert] * followers[expert] / (mean[expert] + even)
        out[expert] = share
        whole += share
    for expert in range(len(out)):
        out[expert] /= max(whole, TINY)


def start_followers(pairs: NDArray[np.float64], share: float) -> None:
    """Nothing was followed yet: after every expert all are as likely."""
    pairs[: pairs.shape[2]] = share
    pairs[pairs.shape[2] :] = 0.0
