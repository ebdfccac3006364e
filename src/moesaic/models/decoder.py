"""The network from tokens to logits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from moesaic.kernels.products import linear
from moesaic.models.architecture import Architecture
from moesaic.models.attention import Attention
from moesaic.models.experts import ExpertService, Routed
from moesaic.models.feed_forward import DenseBlock, RoutedBlock
from moesaic.models.gate_bank import GateBank
from moesaic.models.kv_cache import KVCache
from moesaic.models.norm import RmsNorm
from moesaic.models.rope import frequencies
from moesaic.models.router import Choice
from moesaic.models.token_batch import Segment, make_batch

Walk = Generator[Routed, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: RmsNorm
    attention: Attention
    feed_forward: DenseBlock | RoutedBlock


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
        self._routed = tuple(block for block in blocks if isinstance(block, RoutedBlock))

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def walk(
        self,
        tokens: torch.Tensor,
        segments: Sequence[Segment],
        cache: KVCache,
        counts: torch.Tensor | None = None,
    ) -> Walk:
        """One pass over the new tokens of some sequences, which stand one after the other in
        `tokens`. It stops at every routed layer: yields what the tokens want there and must be
        sent the sum of their experts. Returns the hidden states [tokens, hidden] that `logits`
        takes; the cache remembers the tokens only when all layers are done. `counts` [tokens] says
        how many experts each token uses (None: all of top-k). Whoever drives the walk does so in
        torch's inference mode."""
        step = make_batch(self.architecture.rope, self.frequencies, segments, cache)
        stream = functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            stream = stream + layer.attention(layer.attention_norm(stream), step)
            block = layer.feed_forward
            if isinstance(block, DenseBlock):
                stream = stream + block(stream)
                continue
            routed = block.route(stream, counts)
            total = yield routed
            if routed.beside is not None:
                total = total + routed.beside.result()
            stream = stream + total
        for slot, count in segments:
            cache.advance(slot, count)
        return self.norm(stream)

    def forward(
        self,
        tokens: torch.Tensor,
        segments: Sequence[Segment],
        cache: KVCache,
        experts: ExpertService,
        counts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A whole walk, with a service that computes the experts."""
        with torch.inference_mode():
            walk = self.walk(tokens, segments, cache, counts)
            try:
                routed = next(walk)
                while True:
                    routed = walk.send(experts.compute(routed))
            except StopIteration as end:
                hidden: torch.Tensor = end.value
                return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary]; give only the rows that are wanted, the vocabulary is wide."""
        with torch.inference_mode():
            return linear(hidden, self.head)

    def gate(self, layer: int, stream: torch.Tensor) -> Choice:
        """A routed layer's own router applied to an earlier residual stream (`Routed.stream`):
        what it would choose if nothing happened in between (HybriMoE section IV-C)."""
        with torch.inference_mode():
            return self._routed[layer].gate(stream)

    def gate_bank(self) -> GateBank:
        """All routers together, for looking ahead."""
        return GateBank(self._routed)
