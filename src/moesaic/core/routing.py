"""What a router said about one layer of one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray


class ExpertId(NamedTuple):
    """One routed expert of the model: the MoE layer (counted from 0) and its number in it."""

    layer: int
    expert: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Router output for a later layer, foreseen now.

    `ranked[t, r]` is the expert at rank r for token t, `scores` its probability; ranks may go
    beyond top-k."""

    layer: int
    ranked: NDArray[np.int64]  # [tokens, ranks]
    scores: NDArray[np.float32]  # [tokens, ranks]


class Foreseen(Sequence[Forecast]):
    """Forecasts that cost something: made when first looked at. How many there will be is known."""

    __slots__ = ("_count", "_made", "_make")

    def __init__(self, count: int, make: Callable[[], tuple[Forecast, ...]]) -> None:
        self._count, self._make = count, make
        self._made: tuple[Forecast, ...] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Forecast: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Forecast, ...]: ...
    def __getitem__(self, index: int | slice) -> Forecast | tuple[Forecast, ...]:
        if self._made is None:
            self._made = self._make()
            assert len(self._made) == self._count, "as many forecasts as announced"
        return self._made[index]


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """The tokens of one step at one MoE layer.

    `experts[t]` are the top-k experts of token t, best first, and `weights[t]` their gate
    weights. `ranked`/`scores` extend the list beyond top-k where the source knows more (they
    equal `experts`/`weights` where it does not). `forecasts` are the gates of later layers
    applied early, nearest layer first; empty where the source has none."""

    layer: int
    experts: NDArray[np.int64]  # [tokens, k]
    weights: NDArray[np.float32]  # [tokens, k]
    ranked: NDArray[np.int64]  # [tokens, ranks >= k]
    scores: NDArray[np.float32]  # [tokens, ranks >= k]
    forecasts: Sequence[Forecast] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.experts)

    def loads(self, num_experts: int) -> NDArray[np.int64]:
        """Tokens per expert."""
        return np.bincount(self.experts.ravel(), minlength=num_experts)
