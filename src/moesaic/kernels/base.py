"""What every expert kernel is: made for one shape and one stored precision, it packs an expert's
weights once, then computes from the packed block. A block is one contiguous run of bytes, so that
an expert moves in one copy; only its kernel knows what lies where in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from moesaic.core.numa import Nodes
from moesaic.model_info.expert_block import ALIGNMENT, aligned

__all__ = [
    "ALIGNMENT",
    "Blocks",
    "ExpertKernel",
    "ExpertShape",
    "ExpertWeights",
    "LayerCrew",
    "aligned",
]


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


class Blocks:
    """A layer's packed experts, by number: as tensors, and where they lie."""

    def __init__(self, blocks: Sequence[torch.Tensor]) -> None:
        self.tensors = list(blocks)
        self.addresses = np.array([b.data_ptr() for b in self.tensors], dtype=np.uint64)
        self.address = self.addresses.ctypes.data  # of the addresses


class LayerCrew(Protocol):
    """Computes experts with the threads it was made for, one call at a time."""

    def layer(
        self,
        blocks: Blocks,
        experts: Sequence[int],
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        ragged: bool = False,
    ) -> int:
        """Fill `out` ([tokens, hidden], fp32 or the dtype of `hidden`) with the weighted sums of
        the given experts, for the tokens whose `ids` ([tokens, k], as `weights`) name them; where
        `ragged`, ids may be `UNUSED`. Returns how many nanoseconds the arithmetic took."""

    def expert(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        """Add one expert's part, as `ExpertKernel.compute` does."""


class ExpertKernel(Protocol):
    @property
    def shape(self) -> ExpertShape: ...

    @property
    def dtype(self) -> str:
        """How weights are stored, by our names: bf16, int4, ..."""

    @property
    def block_bytes(self) -> int:
        """Of one packed expert; a multiple of `ALIGNMENT`."""

    def workspace(self, tokens: int) -> int:
        """Bytes `compute` needs beyond its arguments, for at most so many tokens."""

    def pack(self, weights: ExpertWeights, block: torch.Tensor) -> None:
        """Fill `block` (uint8 [block_bytes], aligned); converts on the way."""

    def compute(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        """Add one expert's part: `out[t] += weight * expert(hidden[t])` for the given rows.

        `hidden` [all tokens, hidden], `tokens` row numbers without repetition (None: every row,
        in order), `weights` fp32 [rows, 1] or one number for every row, `out` fp32 [all tokens,
        hidden]: parts of several devices may be added in fp32 and rounded once."""

    def crew(self, threads: int, nodes: Nodes = (), strict: bool = True) -> LayerCrew:
        """Somebody who computes with so many threads, the caller's among them, on the memory nodes
        that experts live on. `strict` crews may refuse routing weights that are no numbers;
        others pass them on to the tokens that have them."""
