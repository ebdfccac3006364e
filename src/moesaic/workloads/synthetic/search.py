"""The search behind a fit: which eight numbers bring the statistics closest. Knows no traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.workloads.synthetic.calibration import Logits

Numbers = NDArray[np.float64]

# The free numbers as the search sees them, and where it starts: logarithms of the shares
# relative to the token's and of the memory, log-odds of the correlations,
# and the inverse hyperbolic tangent of the skew.
START = {
    "popularity": float(np.log(0.3)),
    "document": float(np.log(0.3)),
    "slow": float(np.log(0.2)),
    "noise": float(np.log(0.08)),
    "memory_tokens": float(np.log(8.0)),
    "echo": float(np.log(0.3 / 0.7)),
    "depth": float(np.log(0.985 / 0.015)),
    "skew": 0.0,
}
ROUNDS = 5
TRIALS = 1 + ROUNDS * (len(START) + 2)
STEP = 0.25  # of a number, to see which way the statistics go
LIMIT = 1.0  # the most a number moves in one round
LOWEST, HIGHEST = -6.0, 6.0  # keeps shares and correlations away from 0 and 1


class Trial(NamedTuple):
    numbers: Numbers
    difference: NDArray[np.float64]  # found minus wanted, per statistic

    @property
    def cost(self) -> float:
        return float((self.difference**2).sum())


def search(tried: Callable[[Numbers], Trial]) -> Trial:
    """Gauss-Newton with damping: see how each number moves the statistics, solve for the best
    move, take it or half of it, whichever is better, if either is."""
    best = tried(np.array(list(START.values())))
    for _ in range(ROUNDS):
        slope = _slope(best, tried)
        damped = slope.T @ slope + 1e-3 * np.eye(len(START))
        move = np.linalg.solve(damped, -slope.T @ best.difference).clip(-LIMIT, LIMIT)
        moved = [tried(_bounded(best.numbers + part * move)) for part in (1.0, 0.5)]
        best = min([best, *moved], key=lambda trial: trial.cost)
    return best


def to_logits(numbers: Numbers) -> Logits:
    """The search's numbers as shares of a variance of 1."""
    named = dict(zip(START, numbers.tolist(), strict=True))
    shares = {k: float(np.exp(named[k])) for k in ("popularity", "document", "slow", "noise")}
    total = 1.0 + sum(shares.values())
    return Logits(
        popularity=shares["popularity"] / total,
        document=shares["document"] / total,
        slow=shares["slow"] / total,
        token=1.0 / total,
        noise=shares["noise"] / total,
        memory_tokens=float(np.exp(named["memory_tokens"])),
        echo=_share_of_odds(named["echo"]),
        depth=_share_of_odds(named["depth"]),
        skew=float(np.tanh(named["skew"])),
    )


def _slope(at: Trial, tried: Callable[[Numbers], Trial]) -> NDArray[np.float64]:
    """[statistics, numbers]"""
    columns = []
    for index in range(len(START)):
        numbers = at.numbers.copy()
        numbers[index] += STEP
        columns.append((tried(numbers).difference - at.difference) / STEP)
    return np.stack(columns, axis=1)


def _bounded(numbers: Numbers) -> Numbers:
    return numbers.clip(LOWEST, HIGHEST)


def _share_of_odds(log_odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-log_odds)))
