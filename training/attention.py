"""Attention inside documents: the mask, and how attention is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch.nn import functional


class Look(Protocol):
    """Attention in one layer."""

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """[rows, length, heads, width] each, and the result."""
        ...


class Attention(Protocol):
    def at(self, layer: int) -> Look: ...


@dataclass(frozen=True, slots=True)
class Masked:
    """Works everywhere. `mask` [rows, 1, length, length] is True where a token may attend."""

    mask: torch.Tensor

    @classmethod
    def inside(cls, starts: torch.Tensor) -> Masked:
        """From where documents begin, [rows, length]: only earlier tokens of the same one."""
        document = torch.cumsum(starts, dim=1)
        same = document.unsqueeze(2) == document.unsqueeze(1)
        return cls(torch.tril(same).unsqueeze(1))

    def at(self, layer: int) -> Masked:
        return self

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        return masked_attention(queries, keys, values, self.mask)


def masked_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    mixed = functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask
    )
    return mixed.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Packed:
    """FlashAttention over documents laid end to end; no mask is ever made."""

    bounds: torch.Tensor  # int32: where documents begin, and the end; see batches.boundaries
    longest: int

    def at(self, layer: int) -> Packed:
        return self

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        flash = causal_flash()
        assert flash is not None, "this torch has no varlen attention; see fast_paths"
        flat = [tensor.flatten(0, 1) for tensor in (queries, keys, values)]
        mixed = flash(*flat, self.bounds, self.bounds, self.longest, self.longest)
        return mixed.view(queries.shape)


@cache
def causal_flash() -> Callable[..., torch.Tensor] | None:
    """torch's varlen attention; older releases name causality otherwise. Importing it takes a
    second, so that this waits until documents are packed."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    causal = {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}

    def causal_attention(*arguments: object) -> torch.Tensor:
        return varlen_attn(*arguments, **causal)

    return causal_attention
