"""What every expert kernel is: it packs an expert's weights once, then computes from the packed
block. A block is one contiguous run of memory, so that an expert moves in one copy; only its
kernel knows what lies where in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A gated feed-forward: down(activation(gate(x)) * up(x))."""

    hidden: int
    intermediate: int
    activation: str = "silu"

    @property
    def values(self) -> int:
        return 3 * self.hidden * self.intermediate


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One expert as checkpoints have it: gate and up [intermediate, hidden], down transposed."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class ExpertKernel(Protocol):
    def supports(self, shape: ExpertShape, dtype: torch.dtype) -> bool: ...

    def workspace(self, shape: ExpertShape, tokens: int) -> int:
        """Bytes `compute` needs beyond its arguments, for at most so many tokens."""

    def pack(self, shape: ExpertShape, weights: ExpertWeights, block: torch.Tensor) -> None:
        """Fill `block` (flat, `shape.values` long); converts to the block's dtype."""

    def compute(
        self,
        shape: ExpertShape,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Add one expert's part: `out[t] += weight * expert(hidden[t])` for the given rows.

        `hidden` [all tokens, hidden], `tokens` row numbers without repetition, `weights` one per
        row, `out` fp32 [all tokens, hidden]: parts of several devices may be added in fp32 and
        rounded once."""
