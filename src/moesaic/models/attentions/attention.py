"""What both kinds of attention share: a layer's contract, and scores of one sequence."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from moesaic.kernels.products import linear, matmul
from moesaic.model_info.sliding_window import SCORES
from moesaic.models.token_batch import TokenBatch


class Attention(Protocol):
    def __call__(self, x: torch.Tensor, step: TokenBatch) -> torch.Tensor:
        """Mix in what earlier tokens of the same sequence say. x and result [tokens, hidden];
        writes its part of `step.cache`."""


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention of one sequence whose last tokens are the queries.

    queries [new, heads, width], keys [all, kv heads, width], values [all, kv heads, any width];
    returns [new, heads, values' width]. With a window a token sees the last so many, itself
    included; a single query is given no others."""
    q, k, v = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    new, everything = len(queries), len(keys)
    square = new == everything and not 0 < window < everything
    assert new > 1 or not 0 < window < everything, "a token is given what it does not see"
    mixed = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if new == 1 or square else _seen(new, everything, q.device, window),
        is_causal=new > 1 and square,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return mixed[0].transpose(0, 1)


def attend_with_sinks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    sinks: torch.Tensor,
    window: int = 0,
) -> torch.Tensor:
    """The same with one score more per head, which takes its share of the softmax and adds
    nothing (gpt-oss). Scores are computed for a piece of the queries at a time."""
    heads, everything = queries.shape[1], len(keys)
    rows = max(1, SCORES // (heads * everything))
    seen = _seen(len(queries), everything, queries.device, window) if len(queries) > 1 else None
    parts = [slice(start, start + rows) for start in range(0, len(queries), rows)]
    pieces = [
        _with_sinks(queries[at], keys, values, scale, sinks, None if seen is None else seen[at])
        for at in parts
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _with_sinks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    sinks: torch.Tensor,
    seen: torch.Tensor | None,
) -> torch.Tensor:
    new, heads = queries.shape[:2]
    kv_heads = keys.shape[1]
    grouped = queries.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)  # [kv heads, group, new, _]
    products = matmul(grouped.flatten(1, 2), keys.permute(1, 2, 0))
    scores = products.float().mul_(scale).unflatten(1, (heads // kv_heads, new))
    if seen is not None:
        scores.masked_fill_(~seen, float("-inf"))
    sink = sinks.float().view(kv_heads, -1, 1, 1)
    sink = sink + 0.0 * sink  # NaN where it is infinite: -inf would be no sink at all
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    shares = scores.sub_(top).exp_()
    shares /= shares.sum(-1, keepdim=True) + (sink - top).exp()
    mixed = matmul(shares.to(values.dtype).flatten(1, 2), values.transpose(0, 1))
    return mixed.unflatten(1, (-1, new)).permute(2, 0, 1, 3).flatten(1, 2)


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


def _seen(new: int, everything: int, device: torch.device, window: int = 0) -> torch.Tensor:
    """True where a new token may look: everything before it and itself, within the window."""
    before = everything - new
    seen = torch.ones(new, everything, dtype=torch.bool, device=device).tril(before)
    return seen.triu(before - window + 1) if window else seen
