"""What follows attention in a layer: a dense network, or a router with experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.base import ExpertShape
from moesaic.kernels.reference import feed_forward
from moesaic.models.experts import Beside, Routed
from moesaic.models.linear import Linear
from moesaic.models.norm import RmsNorm
from moesaic.models.router import Choice, Router

if TYPE_CHECKING:
    from moesaic.kernels.native_router import NativeRouter


@dataclass(frozen=True, slots=True)
class GatedNetwork:
    """A feed-forward every token goes through: of a dense layer, or shared beside the experts."""

    shape: ExpertShape
    block: torch.Tensor  # packed as the reference kernel packs an expert

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return feed_forward(self.shape, self.block, x)


@dataclass(frozen=True, slots=True)
class DenseBlock:
    norm: RmsNorm
    network: GatedNetwork

    def __call__(self, stream: torch.Tensor) -> torch.Tensor:
        return self.network(self.norm(stream))


@dataclass(frozen=True, slots=True)
class RoutedBlock:
    """The router and the shared experts; the routed ones are somebody else's."""

    layer: int  # among the routed layers
    norm: RmsNorm
    router: Router
    shared: GatedNetwork | None = None
    shared_gate: Linear | None = None
    fused: NativeRouter[Choice] | None = None  # norm and router of a few tokens at once

    def route(self, stream: torch.Tensor, counts: torch.Tensor | None = None) -> Routed:
        """`counts` [tokens]: how many experts each token uses; None: all of top-k."""
        began, native = perf_counter_ns(), None
        if self.fused is not None and self.fused.takes(stream, counts):
            native = self.fused(stream, None if counts is None else int(counts[0]))
            hidden, choice = native.hidden, native.choice
        else:
            hidden = self.norm(stream)
            choice = self.router(hidden, counts)
        beside = None
        if self.shared is not None:
            beside = Beside(partial(self._shared, self.shared, hidden))
        return Routed(self.layer, hidden, stream, choice, beside, native, began)

    def gate(self, stream: torch.Tensor) -> Choice:
        """What this router would say if the residual stream were already this."""
        return self.router(self.norm(stream))

    def _shared(self, network: GatedNetwork, hidden: torch.Tensor) -> torch.Tensor:
        shared = network(hidden)
        if self.shared_gate is not None:
            shared = self.shared_gate(hidden).sigmoid() * shared
        return shared
