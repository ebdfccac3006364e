"""Matrices of Qwen3-Next's checkpoints that hold several projections, head by head: each by itself,
so that a step need not take their results apart. Biases are split alike."""

from __future__ import annotations

import torch

from moesaic.model_info.linear_attention import LinearAttentionSizes


def query_and_gate(joined: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[heads * 2 * width, ...]: of every head its query, then its gate."""
    query, gate = joined.unflatten(0, (heads, 2, -1)).unbind(1)
    return _rows(query), _rows(gate)


def mixed_and_gate(
    joined: torch.Tensor, shape: LinearAttentionSizes
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split every key head's query and key, and values and gates of the value heads that share it,
    into all queries, keys and values, one after the other; and all gates."""
    values = shape.value_width // shape.key_heads
    sizes = (shape.key_dim, shape.key_dim, values, values)
    query, key, value, gate = joined.unflatten(0, (shape.key_heads, -1)).split(sizes, dim=1)
    return torch.cat((_rows(query), _rows(key), _rows(value))), _rows(gate)


def learning_and_forgetting(joined: torch.Tensor, shape: LinearAttentionSizes) -> torch.Tensor:
    """Split every key head's rates of its value heads into all of learning, then all of
    forgetting."""
    learning, forgetting = joined.unflatten(0, (shape.key_heads, 2, -1)).unbind(1)
    return torch.cat((_rows(learning), _rows(forgetting)))


def _rows(heads: torch.Tensor) -> torch.Tensor:
    return heads.flatten(0, 1).contiguous()
