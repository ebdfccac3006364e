"""One forward pass over several sequences: their new tokens stand in one list, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from moesaic.models.architecture import Rope
from moesaic.models.kv_cache import KVCache
from moesaic.models.rope import Rotation, rotation


class Segment(NamedTuple):
    """So many new tokens of the sequence in a slot of the cache."""

    slot: int
    tokens: int


class RowSpan(NamedTuple):
    """A segment's rows in the list of all new tokens."""

    slot: int
    rows: slice


@dataclass(frozen=True, slots=True)
class TokenBatch:
    spans: tuple[RowSpan, ...]
    turn: Rotation
    cache: KVCache


def make_batch(
    rope: Rope, inverse: torch.Tensor, segments: Sequence[Segment], cache: KVCache
) -> TokenBatch:
    spans, positions, row = [], [], 0
    for slot, tokens in segments:
        start = cache.length(slot)
        spans.append(RowSpan(slot, slice(row, row + tokens)))
        positions.append(torch.arange(start, start + tokens, device=inverse.device))
        row += tokens
    return TokenBatch(tuple(spans), rotation(rope, inverse, torch.cat(positions)), cache)
