"""Prompts read by the same network in fp32, from the same rounded or quantised weights: what two
ways to compute them in bf16 are compared with, where they differ from each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from moesaic.core.routing import ExpertId, LayerRouting
from moesaic.kernels.grouping import routed_sum
from moesaic.kernels.reference import ReferenceKernel
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import Piece
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder
from moesaic.models.experts.expert_service import ResidentExperts, RoutedTokens
from moesaic.models.token_batch import Segment

Step = Callable[[list[Piece]], torch.Tensor]


def in_fp32(value: Any) -> Any:
    """A tensor in bf16, or a tuple or dataclass that holds some, as the same numbers in fp32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype is torch.bfloat16 else value
    if isinstance(value, tuple):
        parts = [in_fp32(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(
        value, **{part.name: in_fp32(getattr(value, part.name)) for part in fields(value)}
    )


class TrueNetwork:
    """On the CPU. `routings`: what its routers chose in the last step, by layer."""

    def __init__(self, decoder: Decoder, store: ExpertStore, slots: int, length: int) -> None:
        parts = (decoder.embedding, decoder.layers, decoder.norm, decoder.head)
        architecture = decoder.architecture
        self._decoder = Decoder(architecture, *(in_fp32(part) for part in parts))
        self._store, self._experts = store, _unpacked(store)
        self._cache = BlockCache(architecture.spec, slots, length, torch.float32)
        self._adapter = RoutingAdapter(architecture.spec.num_experts)
        self.routings: list[LayerRouting] = []

    def step(self, inputs: Sequence[Piece]) -> torch.Tensor:
        """Logits of every new token."""
        self.routings = []
        tokens = torch.tensor([token for each in inputs for token in each.tokens])
        segments = [Segment(each.slot, len(each.tokens)) for each in inputs]
        hidden = self._decoder.forward(tokens, segments, self._cache, self)
        return self._decoder.logits(hidden)

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        self.routings.append(self._adapter.routing(routed))
        if self._experts is not None:
            return self._experts.compute(routed)
        layer, choice = routed.layer, routed.choice
        return routed_sum(
            self._store.kernel, lambda expert: self._store.block(layer, expert), routed.hidden,
            choice.experts, choice.weights,
        )  # fmt: skip


def _unpacked(store: ExpertStore) -> ResidentExperts | None:
    """The native kernels' blocks as matrices in fp32; None where kernels are PyTorch's, which
    compute in the precision of what they are given."""
    unpack = getattr(store.kernel, "unpack", None)
    if unpack is None:
        return None
    kernel = ReferenceKernel(store.kernel.shape, "fp32")
    experts = ResidentExperts(kernel, store.layers, store.experts)
    for layer in range(store.layers):
        for expert in range(store.experts):
            experts.put(ExpertId(layer, expert), unpack(store.block(layer, expert)))
    return experts


def reading_steps() -> list[list[Piece]]:
    """A prompt in two pieces, beside another sequence's prompt and its decoding; both decoding; a
    third prompt. All rows are wanted."""
    text = torch.randint(1, 900, (400,), generator=torch.Generator().manual_seed(1)).tolist()
    steps = [
        [(0, text[:140]), (1, text[:9])],
        [(1, [7]), (0, text[140:270])],
        [(0, [3]), (1, [4])],
        [(2, text[270:310])],
    ]
    return [[Piece(slot, new, all_logits=True) for slot, new in step] for step in steps]


def errors(got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Of every row, relative to its norm."""
    assert got.isfinite().all()
    return (got.double() - truth.double()).norm(dim=1) / truth.double().norm(dim=1)


def same_best(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Share of rows with the true best token."""
    return float((got.argmax(dim=1) == truth.argmax(dim=1)).double().mean())
