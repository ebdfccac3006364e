"""What both kinds of attention share: a layer's contract, and scores of one sequence."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from moesaic.kernels.products import linear
from moesaic.models.token_batch import TokenBatch


class Attention(Protocol):
    def __call__(self, x: torch.Tensor, step: TokenBatch) -> torch.Tensor:
        """Mix in what earlier tokens of the same sequence say. x and result [tokens, hidden];
        writes its part of `step.cache`."""


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Causal attention of one sequence whose last tokens are the queries.

    queries [new, heads, width], keys [all, kv heads, width], values [all, kv heads, any width];
    returns [new, heads, values' width]."""
    q, k, v = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    new, everything = len(queries), len(keys)
    mixed = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if new in (1, everything) else _seen(new, everything, q.device),
        is_causal=1 < new == everything,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return mixed[0].transpose(0, 1)


def attend_shared(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same where all heads read one key and one value per token: two plain products, nothing
    repeated for every head. keys [all, width], values [all, any width]."""
    new, heads = queries.shape[:2]
    scores = linear(queries.flatten(0, 1), keys).float().mul_(scale)
    if new > 1:
        unseen = ~_seen(new, len(keys), scores.device)[:, None]
        scores.unflatten(0, (new, heads)).masked_fill_(unseen, float("-inf"))
    mixed = scores.softmax(dim=-1).to(values.dtype) @ values
    return mixed.unflatten(0, (new, heads))


def _seen(new: int, everything: int, device: torch.device) -> torch.Tensor:
    """True where a new token may look: everything before it and itself."""
    return torch.ones(new, everything, dtype=torch.bool, device=device).tril(everything - new)
