"""What a router said about one layer of one step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNUSED = -1  # an expert number that stands for none: padding where a token uses fewer than top-k


class ExpertId(NamedTuple):
    """One routed expert of the model: the MoE layer (counted from 0) and its number in it."""

    layer: int
    expert: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Router output forecast for a later layer.

    `ranked[t, r]` is the expert at rank r for token t, `scores` its probability; ranks may go
    beyond top-k. (`step`, `layer`) is what it is about; passes are counted as
    `LayerRouting.step`, and it may be another one than the one that made the forecast. A token
    about which nothing is known has a row of `UNUSED`. `trust` is the share of right ones among
    such forecasts as their maker has counted it; None: the brain judges them itself."""

    layer: int
    ranked: NDArray[np.int64]  # [tokens, ranks]
    scores: NDArray[np.float32]  # [tokens, ranks]
    step: int | None = None  # None: the pass of the routing it came with
    trust: float | None = None


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """The tokens of one step at one MoE layer.

    `experts[t]` are the top-k experts of token t, best first, and `weights[t]` their gate
    weights. Where a gate policy lets tokens use fewer, `counts[t]` says how many: columns from
    there on hold `UNUSED` with weight 0. `ranked`/`scores` extend the list beyond top-k where the
    source knows more (they equal `experts`/`weights` where it does not) and do not depend on
    `counts`. `forecasts` are those the source has recorded, nearest layer first; a body whose
    network can forecast makes them when a brain has use for them. `step` numbers the forward
    passes of a run from 0, passes that run a token again included; the body sets it."""

    layer: int
    experts: NDArray[np.int64]  # [tokens, k]
    weights: NDArray[np.float32]  # [tokens, k]
    ranked: NDArray[np.int64]  # [tokens, ranks >= k]
    scores: NDArray[np.float32]  # [tokens, ranks >= k]
    forecasts: tuple[Forecast, ...] = ()
    counts: NDArray[np.int64] | None = None  # [tokens], 1 to k; None: every token uses all k
    step: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.experts)

    def loads(self, num_experts: int) -> NDArray[np.int64]:
        """Tokens per expert."""
        return np.bincount(self.used(), minlength=num_experts)

    def used(self) -> NDArray[np.int64]:
        """The experts of all tokens in one list, token after token, padding left out."""
        flat = self.experts.ravel()
        return flat if self.counts is None else flat[flat != UNUSED]

    def at_step(self, step: int) -> LayerRouting:
        """The same routing in another forward pass."""
        return self if step == self.step else replace(self, step=step)


def cut(routing: LayerRouting, counts: NDArray[np.int64]) -> LayerRouting:
    """The routing if token t used its `counts[t]` best experts only. Weights stay as they are:
    whether they are renormalised is up to the router."""
    experts, weights = cut_columns(routing.experts, routing.weights, counts)
    return replace(routing, experts=experts, weights=weights, counts=counts)


def cut_columns(
    experts: NDArray[np.int64], weights: NDArray[np.float32], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Copies of [..., tokens, k] arrays with padding from `counts[t]` on."""
    unused = np.arange(experts.shape[-1]) >= counts[:, None]
    return np.where(unused, UNUSED, experts), np.where(unused, np.float32(0), weights)
