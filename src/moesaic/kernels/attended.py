"""What a sequence with new tokens attends to, and how scores are made."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class Blocks(NamedTuple):
    """Where a sequence's positions lie: the numbers of its blocks, in order."""

    numbers: NDArray[np.int32]
    positions: int


class Attended(NamedTuple):
    """Keys and values [all, kv heads, width] of a sequence whose last tokens are the rows `rows` of
    a step's queries; `first` is the position of the first key. With `new`, the last tokens' keys
    and values [tokens, kv heads * width] are still to be written there. With `blocks`, keys and
    values are the rows of all blocks, of which the sequence has some. `scales` [all, kv heads]:
    keys and values are codes that these multiply."""

    rows: slice
    keys: torch.Tensor
    values: torch.Tensor
    first: int = 0
    new: tuple[torch.Tensor, torch.Tensor] | None = None
    blocks: Blocks | None = None
    scales: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def positions(self) -> int:
        return len(self.keys) if self.blocks is None else self.blocks.positions

    @property
    def tokens(self) -> int:
        """New ones."""
        count: int = self.rows.stop - self.rows.start
        return count

    def write(self) -> None:
        """What is `new`."""
        for all_rows, new in zip((self.keys, self.values), self.new or (), strict=False):
            all_rows[len(all_rows) - len(new) :] = new.view(len(new), *all_rows.shape[1:])


class AttendedBatch(NamedTuple):
    """All sequences of a step, whose tokens [tokens, heads, width] lie one after the other; keys
    and values are written behind those in `rows`, all blocks [rows, width] of a layer. `sequences`
    [sequences, 4]: first row, tokens, positions, address of the numbers of its blocks. `scales`
    [rows, kv heads]: `rows` are codes that these multiply."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    rows: tuple[torch.Tensor, torch.Tensor]
    sequences: NDArray[np.int64]
    scales: tuple[torch.Tensor, torch.Tensor] | None = None


class Scores(NamedTuple):
    """Products of queries and keys times `scale`. With a window a token sees the last so many,
    itself included; sinks [heads] are one score more per head, which takes its share of the
    softmax and adds nothing (gpt-oss)."""

    scale: float
    window: int = 0
    sinks: torch.Tensor | None = None
