"""Rotary position embedding: frequencies, and turning queries and keys by them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from moesaic.model_info.network import Rope


class Rotation(NamedTuple):
    """Cosine and sine of every token's angles: fp32 [tokens, dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


def frequencies(rope: Rope) -> torch.Tensor:
    """Angle per position, fp32 [dim / 2]."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    stretched = 1.0 / (rope.factor * rope.theta**exponents)
    kept = 1 - _ramp(rope)
    return stretched * (1 - kept) + plain * kept


def rotation(rope: Rope, inverse: torch.Tensor, positions: torch.Tensor) -> Rotation:
    angles = positions[:, None].float() * inverse
    return Rotation(angles.cos() * rope.magnitude, angles.sin() * rope.magnitude)


def rotate(rope: Rope, x: torch.Tensor, turn: Rotation) -> torch.Tensor:
    """Turn the first `rope.dim` values of every head; x is [tokens, heads, head]."""
    if rope.interleaved:
        return _rotate_neighbours(x, turn)
    # As the stock models do, in x's own dtype: angles are exact only until here.
    cos, sin = (part.to(x.dtype)[:, None] for part in turn)
    half = rope.dim // 2
    first, second, rest = x[..., :half], x[..., half : rope.dim], x[..., rope.dim :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _rotate_neighbours(x: torch.Tensor, turn: Rotation) -> torch.Tensor:
    """Pairs (0, 1), (2, 3), ...; in fp32, as the stock model does."""
    cos, sin = turn.cos[:, None], turn.sin[:, None]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def _ramp(rope: Rope) -> torch.Tensor:
    """YaRN: 0 for dimensions that turn often in the original context, 1 for those that turn
    rarely, linear in between."""
    low, high = _turning_dim(rope, rope.beta_fast), _turning_dim(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    steps = torch.arange(rope.dim // 2, dtype=torch.float32)
    return ((steps - low) / (high - low)).clamp(0, 1)


def _turning_dim(rope: Rope, turns: float) -> float:
    """The dimension that turns so many times within the original context."""
    length = rope.original_context / (turns * 2 * math.pi)
    return rope.dim * math.log(length) / (2 * math.log(rope.theta))
