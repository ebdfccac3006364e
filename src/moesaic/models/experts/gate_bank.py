"""The gates of all routed layers in one matrix: what several later layers would choose, from one
residual stream, in one product (HybriMoE section IV-C).

Each gate's rows are multiplied by its layer's norm weight beforehand, so that the stream is
normalised once. That rounds a little differently from the layer's own gate: good enough to forecast
with, never used to choose by.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.core.routing import Forecast
from moesaic.kernels.products import linear
from moesaic.models.experts.feed_forward import MoeBlock
from moesaic.models.experts.router import choose


class GateBank:
    def __init__(self, blocks: Sequence[MoeBlock]) -> None:
        first = blocks[0]
        self._rule, self._eps = first.router.rule, first.norm.eps
        self._layers, self._experts = len(blocks), len(first.router.weight)
        gates = [_scaled(block.router.weight, block.norm.weight) for block in blocks]
        self._gates = torch.cat(gates)
        added = [b.router.logit_bias for b in blocks if b.router.logit_bias is not None]
        self._logit_biases = torch.cat(added) if added else None
        biases = [block.router.bias for block in blocks if block.router.bias is not None]
        self._biases = torch.stack(biases) if biases else None

    def depth(self, layer: int, wanted: int) -> int:
        """How many of the wanted later layers there are."""
        return max(min(wanted, self._layers - layer - 1), 0)

    def forecasts(
        self, layer: int, depth: int, ranks: int, residual: torch.Tensor, step: int
    ) -> tuple[Forecast, ...]:
        """What the routers of the next `depth` layers of this step would say, nearest first."""
        wide = residual.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        rows = slice((layer + 1) * self._experts, (layer + 1 + depth) * self._experts)
        added = None if self._logit_biases is None else self._logit_biases[rows]
        product = linear(scaled.to(residual.dtype), self.gates(layer, depth), added)
        ranked, scores = self.ranked(layer, depth, ranks, product)
        numbers, values = ranked.cpu().numpy(), scores.cpu().numpy()
        return tuple(
            Forecast(layer + 1 + d, numbers[:, d], values[:, d], step) for d in range(depth)
        )

    def gates(self, layer: int, depth: int) -> torch.Tensor:
        """The gates of the next `depth` layers, [depth * experts, hidden], for a stream that is
        normalised without a weight."""
        return self._gates[(layer + 1) * self._experts : (layer + 1 + depth) * self._experts]

    def biases(self, layer: int, depth: int) -> torch.Tensor | None:
        """The biases for choosing, [depth, experts]."""
        return None if self._biases is None else self._biases[layer + 1 : layer + 1 + depth]

    @property
    def adds_to_logits(self) -> bool:
        return self._logit_biases is not None

    def ranked(
        self, layer: int, depth: int, ranks: int, product: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [tokens, depth * experts] to experts and scores [tokens, depth, ranks]."""
        logits = product.unflatten(-1, (depth, -1))
        choice = choose(self._rule, logits, self.biases(layer, depth))
        ranked = torch.topk(choice.preference, ranks, dim=-1).indices
        return ranked, choice.scores.gather(-1, ranked)


def _scaled(router: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """The router, scaled in the network's precision: some families keep one of them in fp32."""
    network = min(router.dtype, norm.dtype, key=lambda dtype: dtype.itemsize)
    return (router * norm).to(network)
