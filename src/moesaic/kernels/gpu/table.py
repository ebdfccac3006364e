"""The table that says which experts a launch computes, and where their weights are.

One array of 64-bit words, so that it is written by a native thread and read by the kernels in one
piece. A header: how many experts there are, the address of the flag with the ticket of the last
copy that has ended, how many experts the CPU computes, how many experts there are in front of the
first that may have to be waited for. Per expert the address of its block, the
address of a slot to fill in passing (0: none), the ticket of the copy to wait for (0: none) and its
first row; then the rows, each a pair of a token and a rank (`token * top_k + rank`); then, as fp32,
every pair's weight, 0 for those that are computed elsewhere. Experts and rows beyond the counts
are not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COUNT = 0
FLAG = 1
ON_CPU = 2
ARRIVING = 3
HEADER = 8  # words before the first array


@dataclass(frozen=True, slots=True)
class TableShape:
    """How many experts and pairs a table has space for."""

    experts: int
    pairs: int

    @classmethod
    def of(cls, tokens: int, top_k: int, experts: int) -> TableShape:
        return cls(min(tokens * top_k, experts), tokens * top_k)

    @property
    def blocks_at(self) -> int:
        return HEADER

    @property
    def fills_at(self) -> int:
        return HEADER + self.experts

    @property
    def waits_at(self) -> int:
        return HEADER + 2 * self.experts

    @property
    def firsts_at(self) -> int:
        """One more than there are experts: the last is where the rows end."""
        return HEADER + 3 * self.experts

    @property
    def rows_at(self) -> int:
        return HEADER + 4 * self.experts + 1

    @property
    def shares_at(self) -> int:
        """Two weights per word."""
        return self.rows_at + self.pairs

    @property
    def words(self) -> int:
        return self.shares_at + -(-self.pairs // 2)


def write_table(
    words: NDArray[np.int64],
    shape: TableShape,
    blocks: Sequence[int],
    fills: Sequence[int],
    rows: Sequence[Sequence[int]],
) -> None:
    """Fill a table in: per expert its block's address, the slot to fill, its pairs."""
    ends = np.cumsum([0, *(len(each) for each in rows)])
    together = np.array([pair for each in rows for pair in each], dtype=np.int64)
    write_rows(words, shape, blocks, fills, ends, together)


def write_rows(
    words: NDArray[np.int64],
    shape: TableShape,
    blocks: Sequence[int],
    fills: Sequence[int],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> None:
    """The same with all experts' pairs in one array; expert i has those from `ends[i]` on."""
    count = len(blocks)
    words[COUNT] = count
    words[shape.blocks_at : shape.blocks_at + count] = blocks
    words[shape.fills_at : shape.fills_at + count] = fills
    words[shape.waits_at : shape.waits_at + count] = 0
    words[shape.firsts_at : shape.firsts_at + count + 1] = ends
    words[shape.rows_at : shape.rows_at + len(rows)] = rows
