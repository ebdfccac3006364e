"""What follows attention in a layer: a dense network, or a router with experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.reference import feed_forward
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.models.experts.expert_service import RoutedTokens, SharedExperts
from moesaic.models.experts.reused_routing import LayerReuse
from moesaic.models.experts.router import Choice, Router
from moesaic.models.linear import Linear
from moesaic.models.norm import RmsNorm

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import PackedNetwork
    from moesaic.kernels.native_router import NativeRouter
    from moesaic.kernels.quantized_linear import QuantizedNetwork


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """A feed-forward every token goes through: a dense layer's, or the shared experts."""

    shape: ExpertShape
    block: torch.Tensor  # packed as the reference kernel packs an expert; else without memory
    packed: PackedNetwork | QuantizedNetwork | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return self.packed(x)
        return feed_forward(self.shape, self.block, x)


@dataclass(frozen=True, slots=True)
class DenseBlock:
    norm: RmsNorm
    network: GatedMlp


@dataclass(frozen=True, slots=True)
class MoeBlock:
    """The router and the shared experts; the routed ones are computed by an `ExpertService`."""

    layer: int  # counted among the MoE layers
    norm: RmsNorm
    router: Router
    shared: GatedMlp | None = None
    shared_gate: Linear | None = None
    fused: NativeRouter[Choice] | None = None  # norm and router of a few tokens at once

    def route(
        self,
        residual: torch.Tensor,
        counts: torch.Tensor | None = None,
        added: torch.Tensor | None = None,
        reuse: LayerReuse | None = None,
    ) -> RoutedTokens:
        """`counts` [tokens]: how many experts each token uses; None: all of top-k. `added` comes
        to the residual stream before. `reuse`: some tokens have their experts already."""
        began, native = perf_counter_ns(), None
        fused = self.fused if reuse is None else None
        if fused is not None and fused.takes_many(residual, added):
            residual, native = fused.many(residual, counts, added)
        else:
            residual = residual if added is None else residual + added
            if fused is not None and fused.takes(residual, counts):
                native = fused(residual, None if counts is None else int(counts[0]))
        if native is not None:
            hidden, choice = native.hidden, native.choice
        else:
            hidden = self.norm(residual)
            choice = self.router(hidden, counts, reuse)
        shared_experts = None
        if self.shared is not None:
            shared_experts = SharedExperts(partial(self._shared, self.shared, hidden))
        return RoutedTokens(self.layer, hidden, residual, choice, shared_experts, native, began)

    def gate(self, residual: torch.Tensor) -> Choice:
        """This router applied to the residual stream of an earlier layer."""
        return self.router(self.norm(residual))

    def _shared(self, network: GatedMlp, hidden: torch.Tensor) -> torch.Tensor:
        shared = network(hidden)
        if self.shared_gate is not None:
            logit = self.shared_gate(hidden)
            shared = (logit.sigmoid() + 0.0 * logit) * shared  # NaN where the logit is infinite
        return shared
