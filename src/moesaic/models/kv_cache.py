"""The KV cache: keys and values of earlier tokens.

A cache has slots, one per running sequence. Per layer and token it keeps two vectors, whatever
they mean to the attention: keys and values, or the latent and its rotary key.
"""

from __future__ import annotations

from typing import Protocol

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.model_spec import ModelSpec


class KVCache(Protocol):
    def length(self, slot: int) -> int:
        """Tokens remembered; the next one's position."""

    def extend(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's vectors [new tokens, width] after `length`; returns those of all tokens
        so far. The length stays, so that every layer of a step writes at the same place."""

    def advance(self, slot: int, tokens: int) -> None:
        """All layers have written: the tokens count from now on."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget what lies beyond; 0 frees the slot."""


def cache_widths(spec: ModelSpec) -> tuple[int, int]:
    """How wide the two vectors of a token are."""
    if spec.latent_attention is not None:
        return spec.latent_attention.kv_lora_rank, spec.latent_attention.qk_rope_head_dim
    width = spec.num_kv_heads * spec.head_dim
    return width, width


class ContiguousCache:
    """Every slot holds the longest sequence, allocated at once: `first` and `second` [layers,
    slots, max length, width] stay where they are, so that captured kernels find them."""

    def __init__(
        self,
        spec: ModelSpec,
        slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: str = "cpu",
    ) -> None:
        first, second = cache_widths(spec)
        shape = (spec.num_layers, slots, max_length)
        self.first = torch.zeros((*shape, first), dtype=dtype, device=device)
        self.second = torch.zeros((*shape, second), dtype=dtype, device=device)
        self._lengths = [0] * slots
        self.slots, self.max_length = slots, max_length

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def extend(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = self._lengths[slot]
        end = start + len(first)
        if end > self.max_length:
            raise ImpossibleSetting(
                f"a sequence of {end} tokens was asked for, but the KV cache holds "
                f"{self.max_length} per sequence: shorten it or allow longer sequences."
            )
        all_first, all_second = self.first[layer, slot, :end], self.second[layer, slot, :end]
        all_first[start:] = first
        all_second[start:] = second
        return all_first, all_second

    def advance(self, slot: int, tokens: int) -> None:
        self._lengths[slot] += tokens

    def truncate(self, slot: int, length: int) -> None:
        assert length <= self._lengths[slot], "a cache cannot be truncated to more than it holds"
        self._lengths[slot] = length

    def copy(self, source: int, slot: int) -> None:
        """A free slot gets what another one holds."""
        assert not self._lengths[slot], "a slot that is in use cannot be copied to"
        length = self._lengths[source]
        for both in (self.first, self.second):
            both[:, slot, :length] = both[:, source, :length]
        self._lengths[slot] = length
