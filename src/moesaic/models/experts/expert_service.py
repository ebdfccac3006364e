"""The interface through which a model has its routed experts computed: it asks for a layer's
weighted sum and knows neither the device nor where the weights are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from moesaic.core.routing import ExpertId
from moesaic.kernels.base import ExpertKernel, ExpertWeights
from moesaic.kernels.grouping import routed_sum
from moesaic.models.experts.router import Choice

if TYPE_CHECKING:
    from moesaic.kernels.native_router import RoutingResult


class SharedExperts:
    """The shared experts of the same tokens, computed on first use."""

    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        self._compute = compute
        self._value: torch.Tensor | None = None

    def result(self) -> torch.Tensor:
        if self._value is None:
            self._value = self._compute()
        return self._value


class RoutedTokens(NamedTuple):
    """The tokens of one step at one MoE layer (MoE layers are counted from 0).

    `residual` is the residual stream the block reads; routers of later layers are applied to it for
    forecasts. `hidden` is the same, normalised: the input of the experts. A service may compute
    `shared_experts` in parallel with the routed ones, or leave them to the model."""

    layer: int
    hidden: torch.Tensor  # [tokens, hidden]
    residual: torch.Tensor  # [tokens, hidden]
    choice: Choice
    shared_experts: SharedExperts | None = None
    native: RoutingResult[Choice] | None = None  # the same, where it was made natively
    start_ns: int = 0  # when attention was done and the router began


class ExpertService(Protocol):
    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        """Every token's chosen experts, scaled by their weights and added: [tokens, hidden] in
        the dtype of `routed.hidden`. Which device computes what may change rounding, nothing
        else. One call per routed layer, in order."""


class ResidentExperts:
    """All experts in one place, computed there with one kernel."""

    def __init__(
        self, kernel: ExpertKernel, layers: int, experts: int, device: str = "cpu"
    ) -> None:
        self._kernel = kernel
        shape = (layers, experts, kernel.block_bytes)
        self._blocks = torch.empty(shape, dtype=torch.uint8, device=device)

    def put(self, expert: ExpertId, weights: ExpertWeights) -> None:
        self._kernel.pack(weights, self._blocks[expert.layer, expert.expert])

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        blocks, choice = self._blocks[routed.layer], routed.choice
        total = routed_sum(
            self._kernel, blocks.__getitem__, routed.hidden, choice.experts, choice.weights
        )
        return total.to(routed.hidden.dtype)
