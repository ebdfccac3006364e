"""The routed experts, seen from the model: it asks for a layer's sum and does not know who
computes it, nor where the weights are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from moesaic.core.routing import ExpertId
from moesaic.kernels.base import ExpertKernel, ExpertWeights
from moesaic.kernels.grouping import routed_sum
from moesaic.models.router import Choice

if TYPE_CHECKING:
    from moesaic.kernels.native_router import RoutingResult


class Beside:
    """The shared experts of the same tokens: whoever has time computes them, once."""

    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        self._compute = compute
        self._value: torch.Tensor | None = None

    def result(self) -> torch.Tensor:
        if self._value is None:
            self._value = self._compute()
        return self._value


class Routed(NamedTuple):
    """The tokens of one step at one routed layer (counted among those, from 0).

    `stream` is the residual stream the block reads: what gates of later layers are applied to.
    `hidden` is the same, normalised: what the experts compute on. `beside` are the shared experts,
    where there are any: a service may compute them beside the routed ones, or leave them."""

    layer: int
    hidden: torch.Tensor  # [tokens, hidden]
    stream: torch.Tensor  # [tokens, hidden]
    choice: Choice
    beside: Beside | None = None
    native: RoutingResult[Choice] | None = None  # the same, where it was made natively
    began_ns: int = 0  # when attention was done and the router began


class ExpertService(Protocol):
    def compute(self, routed: Routed) -> torch.Tensor:
        """Every token's chosen experts, scaled by their weights and added: [tokens, hidden] in
        the dtype of `routed.hidden`. Which device computes what may change rounding, nothing
        else. One call per routed layer, in order."""


class ResidentExperts:
    """All experts in one place, computed there with one kernel."""

    def __init__(
        self, kernel: ExpertKernel, layers: int, experts: int, device: str = "cpu"
    ) -> None:
        self._kernel = kernel
        room = (layers, experts, kernel.block_bytes)
        self._blocks = torch.empty(room, dtype=torch.uint8, device=device)

    def put(self, expert: ExpertId, weights: ExpertWeights) -> None:
        self._kernel.pack(weights, self._blocks[expert.layer, expert.expert])

    def compute(self, routed: Routed) -> torch.Tensor:
        blocks, choice = self._blocks[routed.layer], routed.choice
        total = routed_sum(
            self._kernel, blocks.__getitem__, routed.hidden, choice.experts, choice.weights
        )
        return total.to(routed.hidden.dtype)
