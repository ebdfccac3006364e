"""The network from tokens to logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from moesaic.models.attentions.attention import Attention
from moesaic.models.attentions.kv_cache import KVCache
from moesaic.models.attentions.rope import frequencies
from moesaic.models.configs.architecture import Architecture
from moesaic.models.experts.expert_service import ExpertService
from moesaic.models.experts.feed_forward import DenseBlock, MoeBlock
from moesaic.models.experts.gate_bank import GateBank
from moesaic.models.experts.reused_routing import ReusedRouting
from moesaic.models.experts.router import Choice
from moesaic.models.linear import Linear
from moesaic.models.norm import RmsNorm
from moesaic.models.token_batch import Segment, finite_sums, make_batch

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: RmsNorm
    attention: Attention
    feed_forward: DenseBlock | MoeBlock
    residual: float = 1.0  # factor of what both add


def finite_or_nan(logits: torch.Tensor) -> torch.Tensor:
    """Logits [rows, vocabulary] as they are; all NaN where any of a row is not finite: that -inf
    was computed would not be noticed."""
    fine = finite_sums(logits).isfinite()
    return logits if bool(fine.all()) else logits.masked_fill(~fine[:, None], float("nan"))


class Decoder:
    def __init__(
        self,
        architecture: Architecture,
        embedding: torch.Tensor,
        layers: Sequence[Layer],
        norm: RmsNorm,
        head: torch.Tensor | Linear,
        dense: DenseRunner | None = None,
    ) -> None:
        """`dense`: what multiplies packed weights, where they are."""
        self.architecture = architecture
        self.layers = tuple(layers)
        self.embedding = embedding
        self.norm = norm
        self.output = head if isinstance(head, Linear) else Linear(head)
        self.dense = dense
        ropes = architecture.network.ropes
        self.frequencies = {rope: frequencies(rope).to(embedding.device) for rope in ropes}
        blocks = (layer.feed_forward for layer in self.layers)
        self._routed = tuple(block for block in blocks if isinstance(block, MoeBlock))

    @property
    def head(self) -> torch.Tensor:
        return self.output.weight

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def forward(
        self,
        tokens: torch.Tensor,
        segments: Sequence[Segment],
        cache: KVCache,
        experts: ExpertService,
        counts: torch.Tensor | None = None,
        reused: ReusedRouting | None = None,
    ) -> torch.Tensor:
        """One pass over the new tokens of some sequences, which stand one after the other in
        `tokens`. At every MoE layer `experts` computes what was routed. Returns the hidden states
        [tokens, hidden] that `logits` takes; the tokens count as cached only when all layers
        are done. `counts` [tokens] says how many experts each token uses (None: all of top-k);
        `reused` has the routing of tokens that are not to be routed."""
        with torch.inference_mode():
            return self._forward(tokens, segments, cache, experts, counts, reused)

    def _forward(
        self,
        tokens: torch.Tensor,
        segments: Sequence[Segment],
        cache: KVCache,
        experts: ExpertService,
        counts: torch.Tensor | None,
        reused: ReusedRouting | None,
    ) -> torch.Tensor:
        step = make_batch(self.frequencies, segments, cache, self.device)
        scale = self.architecture.network.embedding_scale
        residual = _scaled(functional.embedding(tokens, self.embedding), scale)
        added: torch.Tensor | None = None  # to the residual stream, before the next norm
        for layer in self.layers:
            residual, normed = layer.attention_norm.after_adding(residual, added)
            added = _scaled(layer.attention(normed, step), layer.residual)
            block = layer.feed_forward
            if isinstance(block, DenseBlock):
                residual, normed = block.norm.after_adding(residual, added)
                added = _scaled(block.network(normed), layer.residual)
                continue
            reuse = None if reused is None else reused.layer(block.layer)
            routed = block.route(residual, counts, added, reuse)
            residual = routed.residual
            total = experts.compute(routed)
            if routed.shared_experts is not None:
                total = total + routed.shared_experts.result()
            added = _scaled(total, layer.residual)
        for slot, count in segments:
            cache.advance(slot, count)
        return step.marked(self.norm.after_adding(residual, added)[1])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary]; give only the rows that are wanted, the vocabulary is wide."""
        with torch.inference_mode():
            logits = self.output(hidden)
            return finite_or_nan(_scaled(logits, 1 / self.architecture.network.logit_divisor))

    def gate(self, layer: int, residual: torch.Tensor) -> Choice:
        """A MoE layer's router applied to the residual stream of an earlier layer
        (`RoutedTokens.residual`): a forecast of its choice (HybriMoE section IV-C)."""
        with torch.inference_mode():
            return self._routed[layer].gate(residual)

    def gate_bank(self) -> GateBank:
        """All routers together, for looking ahead."""
        return GateBank(self._routed)


def _scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x if by == 1.0 else x * by
