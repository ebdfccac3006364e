"""The network from tokens to logits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from moesaic.kernels.products import linear
from moesaic.models.architecture import Architecture
from moesaic.models.attention import Attention
from moesaic.models.expert_service import ExpertService, RoutedTokens
from moesaic.models.feed_forward import DenseBlock, MoeBlock
from moesaic.models.gate_bank import GateBank
from moesaic.models.kv_cache import KVCache
from moesaic.models.norm import RmsNorm
from moesaic.models.rope import frequencies
from moesaic.models.router import Choice
from moesaic.models.token_batch import Segment, make_batch

ForwardGenerator = Generator[RoutedTokens, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: RmsNorm
    attention: Attention
    feed_forward: DenseBlock | MoeBlock


class Decoder:
    def __init__(
        self,
        architecture: Architecture,
        embedding: torch.Tensor,
        layers: Sequence[Layer],
        norm: RmsNorm,
        head: torch.Tensor,
    ) -> None:
        self.architecture = architecture
        self.layers = tuple(layers)
        self.embedding = embedding
        self.norm = norm
        self.head = head
        self.frequencies = frequencies(architecture.rope).to(embedding.device)
        blocks = (layer.feed_forward for layer in self.layers)
        self._routed = tuple(block for block in blocks if isinstance(block, MoeBlock))

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def forward_by_layer(
        self,
        tokens: torch.Tensor,
        segments: Sequence[Segment],
        cache: KVCache,
        counts: torch.Tensor | None = None,
    ) -> ForwardGenerator:
        """One pass over the new tokens of some sequences, which stand one after the other in
        `tokens`. It stops at every MoE layer: yields the routed tokens and must be sent the
        sum of their experts. Returns the hidden states [tokens, hidden] that `logits`
        takes; the tokens count as cached only when all layers are done. `counts` [tokens] says
        how many experts each token uses (None: all of top-k). Drive the generator in torch's
        inference mode."""
        step = make_batch(self.architecture.rope, self.frequencies, segments, cache)
        residual = functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            residual = residual + layer.attention(layer.attention_norm(residual), step)
            block = layer.feed_forward
            if isinstance(block, DenseBlock):
                residual = residual + block(residual)
                continue
            routed = block.route(residual, counts)
            total = yield routed
            if routed.shared_experts is not None:
                total = total + routed.shared_experts.result()
            residual = residual + total
        for slot, count in segments:
            cache.advance(slot, count)
        return self.norm(residual)

    def forward(
        self,
        tokens: torch.Tensor,
        segments: Sequence[Segment],
        cache: KVCache,
        experts: ExpertService,
        counts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A whole forward pass, with a service that computes the experts."""
        with torch.inference_mode():
            forward_by_layer = self.forward_by_layer(tokens, segments, cache, counts)
            try:
                routed = next(forward_by_layer)
                while True:
                    routed = forward_by_layer.send(experts.compute(routed))
            except StopIteration as end:
                hidden: torch.Tensor = end.value
                return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary]; give only the rows that are wanted, the vocabulary is wide."""
        with torch.inference_mode():
            return linear(hidden, self.head)

    def gate(self, layer: int, residual: torch.Tensor) -> Choice:
        """A MoE layer's router applied to the residual stream of an earlier layer
        (`RoutedTokens.residual`): a forecast of its choice (HybriMoE section IV-C)."""
        with torch.inference_mode():
            return self._routed[layer].gate(residual)

    def gate_bank(self) -> GateBank:
        """All routers together, for looking ahead."""
        return GateBank(self._routed)
