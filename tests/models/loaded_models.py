"""A loaded model with its cache: what the tests drive."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder
from moesaic.models.experts.expert_service import ExpertService, RoutedTokens
from moesaic.models.open_model import (
    load_decoder,
    load_resident_experts,
    open_model,
    with_experts_per_token,
)
from moesaic.models.token_batch import Segment


@dataclass
class Ours:
    decoder: Decoder
    experts: ExpertService
    slots: int = 1
    cache: BlockCache = field(init=False)

    def __post_init__(self) -> None:
        spec = self.decoder.architecture.spec
        self.cache = BlockCache(spec, self.slots, 128, self.decoder.dtype)

    def logits(
        self,
        tokens: list[list[int]],
        slots: list[int] | None = None,
        counts: list[int] | None = None,
    ) -> list[torch.Tensor]:
        """Feed some tokens to each of several sequences at once: [tokens, vocabulary] each.
        `counts` are the experts that each token uses."""
        places = slots if slots is not None else list(range(len(tokens)))
        segments = [Segment(slot, len(row)) for slot, row in zip(places, tokens, strict=True)]
        flat = torch.tensor([token for row in tokens for token in row])
        used = None if counts is None else torch.tensor(counts)
        hidden = self.decoder.forward(flat, segments, self.cache, self.experts, used)
        return list(self.decoder.logits(hidden).split([len(row) for row in tokens]))


def load(folder: Path, dtype: str = "fp32", slots: int = 1, top_k: int | None = None) -> Ours:
    model = open_model(folder)
    if top_k is not None:
        model = with_experts_per_token(model, top_k)
    return Ours(load_decoder(model, dtype), load_resident_experts(model, dtype), slots)


@dataclass
class Recorder:
    """A service that notes what it is asked, then has it done."""

    inner: ExpertService
    seen: list[RoutedTokens] = field(default_factory=list)

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        self.seen.append(routed)
        return self.inner.compute(routed)
