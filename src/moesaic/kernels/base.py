"""Interfaces of expert kernels. A kernel is made for one expert shape and stored precision; it
packs an expert's weights once and computes from the packed block. A block is one contiguous range
of bytes, so that an expert is moved in one copy; only its kernel knows the layout within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from moesaic.core.numa import Nodes
from moesaic.model_info.expert_block import ALIGNMENT, aligned
from moesaic.model_info.expert_shape import ExpertShape

__all__ = [
    "ALIGNMENT",
    "Blocks",
    "ExpertBiases",
    "ExpertKernel",
    "ExpertWeights",
    "LayerExecutor",
    "aligned",
]


class ExpertBiases(NamedTuple):
    gate: torch.Tensor  # [intermediate]
    up: torch.Tensor  # [intermediate]
    down: torch.Tensor  # [hidden]


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One expert as in a checkpoint: gate and up [intermediate, hidden], down transposed; biases
    of a shape that has them."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    biases: ExpertBiases | None = None


class Blocks:
    """A layer's packed experts, by expert id: tensors, and a table of their addresses."""

    def __init__(self, blocks: Sequence[torch.Tensor]) -> None:
        self.tensors = list(blocks)
        self.addresses = np.array([b.data_ptr() for b in self.tensors], dtype=np.uint64)
        self.address = self.addresses.ctypes.data  # of the table


class LayerExecutor(Protocol):
    """Computes experts with a fixed number of threads, one call at a time."""

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
        `ragged`, ids may be `UNUSED`. Returns the nanoseconds spent computing."""

    def expert(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        """Add one expert's contribution, as `ExpertKernel.compute` does."""


class ExpertKernel(Protocol):
    @property
    def shape(self) -> ExpertShape: ...

    @property
    def dtype(self) -> str:
        """Stored precision of the weights: bf16, int4, ..."""

    @property
    def layout(self) -> str:
        """Names how a block's bytes are laid out: kernels with the same one, of the same shape and
        dtype, compute from each other's blocks."""

    @property
    def block_bytes(self) -> int:
        """Size of one packed expert; a multiple of `ALIGNMENT`."""

    def workspace(self, tokens: int) -> int:
        """Bytes `compute` needs besides its arguments, for at most so many tokens."""

    def pack(self, weights: ExpertWeights, block: torch.Tensor) -> None:
        """Convert and pack into `block` (uint8 [block_bytes], aligned)."""

    def compute(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        """Add one expert's contribution: `out[t] += weight * expert(hidden[t])` for the given rows.

        `hidden` [all tokens, hidden], `tokens` row numbers without repetition (None: every row,
        in order), `weights` fp32 [rows, 1] or one number for every row, `out` fp32 [all tokens,
        hidden]: parts of several devices may be added in fp32 and rounded once."""

    def executor(self, threads: int, nodes: Nodes = (), strict: bool = True) -> LayerExecutor:
        """Computes with so many threads, including the caller's, on the NUMA nodes that hold the
        experts. A `strict` executor may refuse routing weights that are not finite; others
        compute with them, which affects only the tokens that have them."""
