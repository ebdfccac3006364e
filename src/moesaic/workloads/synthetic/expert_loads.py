"""How many tokens each expert of each layer gets in every decode step, with or without the tokens.

For studies of scheduling that need thousands of layers: loads are drawn from popularities, not
from router logits. Without tokens (`steps`), each chooses expert e with probability
1 - exp(-c w_e), the weights being log-normal with c such that top_k are chosen on average; so no
expert gets more tokens than the batch has. With tokens (`choices`), each draws `top_k` different
experts in proportion to the weights. `sigma` is the spread of the logarithms. `drift` is the share
of their variance that changes while decoding, forgotten after `memory_steps`; the rest never
changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting

COLD_EXPERTS, COLD_TOKENS = 0.7, 0.08  # TriMoE, Fig. 3: 70 % of the experts get 8 % of the tokens


@dataclass(frozen=True, slots=True)
class LoadProcess:
    layers: int
    experts: int
    top_k: int
    batch: int
    sigma: float | None = None  # None: as in TriMoE's Fig. 3
    drift: float = 0.1
    memory_steps: float = 32.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts or self.batch < 1 or self.layers < 1:
            raise ImpossibleSetting(
                f"{self.layers} layers, top-{self.top_k} of {self.experts} experts, batch "
                f"{self.batch}: all must be at least 1, and top-k at most the number of experts"
            )
        if not (0 <= self.drift <= 1 and self.memory_steps > 0 and (self.sigma or 0.0) >= 0):
            raise ImpossibleSetting("drift is a share; memory_steps and sigma are not negative")

    def steps(self, count: int) -> Iterator[NDArray[np.int64]]:
        """[layers, experts] for every step; the same on every pass."""
        rng = np.random.default_rng([self.seed, self.experts, self.top_k])
        for logs in self._logs(rng, count):
            yield rng.binomial(self.batch, inclusion(np.exp(logs), self.top_k))

    def choices(self, count: int) -> Iterator[NDArray[np.int64]]:
        """[layers, batch, top_k] for every step: different experts, the first drawn first."""
        rng = np.random.default_rng([self.seed, self.experts, self.top_k])
        for logs in self._logs(rng, count):
            shape = (self.layers, self.batch, self.experts)
            keys = rng.gumbel(size=shape) + logs[:, None, :]
            first = np.argpartition(-keys, self.top_k - 1, axis=-1)[..., : self.top_k]
            order = np.argsort(-np.take_along_axis(keys, first, -1), axis=-1)
            yield np.take_along_axis(first, order, -1)

    def _logs(self, rng: np.random.Generator, count: int) -> Iterator[NDArray[np.float64]]:
        """Logarithms of the weights, [layers, experts]; the caller may draw between two steps."""
        sigma = fig_3_sigma(self.experts, self.top_k) if self.sigma is None else self.sigma
        shape = (self.layers, self.experts)
        fixed = np.sqrt(1 - self.drift) * rng.standard_normal(shape)
        moving = rng.standard_normal(shape)
        keep = np.exp(-1.0 / self.memory_steps)
        for _ in range(count):
            yield sigma * (fixed + np.sqrt(self.drift) * moving)
            moving = keep * moving + np.sqrt(1 - keep**2) * rng.standard_normal(shape)


def inclusion(weights: NDArray[np.float64], top_k: int) -> NDArray[np.float64]:
    """Probabilities 1 - exp(-c w) that sum to `top_k` per row, by bisection on log c."""
    low = np.log(top_k / weights.sum(axis=-1, keepdims=True)) - 1.0
    high = low + 20.0
    for _ in range(40):
        middle = (low + high) / 2
        chosen = -np.expm1(-np.exp(middle) * weights)
        small = chosen.sum(axis=-1, keepdims=True) < top_k
        low, high = np.where(small, middle, low), np.where(small, high, middle)
    found: NDArray[np.float64] = -np.expm1(-np.exp(high) * weights)
    return found


def fig_3_sigma(experts: int, top_k: int, cold_tokens: float = COLD_TOKENS) -> float:
    """The spread with which `COLD_EXPERTS` of the experts get `cold_tokens` of the tokens,
    over many drawn layers."""
    normal = np.sort(np.random.default_rng(0).standard_normal((64, experts)), axis=-1)
    low, high = 0.0, 8.0
    for _ in range(20):
        sigma = (low + high) / 2
        chosen = inclusion(np.exp(sigma * normal), top_k)
        low, high = (sigma, high) if cold_share(chosen) > cold_tokens else (low, sigma)
    return (low + high) / 2


def cold_share(loads: NDArray[np.number], experts_share: float = COLD_EXPERTS) -> float:
    """The tokens' share that the least used experts get, of a layer's loads [..., experts]."""
    ordered = np.sort(loads, axis=-1)
    count = round(experts_share * loads.shape[-1])
    return float(ordered[..., :count].sum() / ordered.sum())
