"""Blocks of the KV cache by number: how many hold each, and which are free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class BlockPool:
    """A block is free when nothing holds it. Blocks that follow each other in a sequence are made
    to follow each other in memory where that is possible, so that they can be read as one."""

    def __init__(self, blocks: int) -> None:
        self.holders: NDArray[np.int32] = np.zeros(blocks, dtype=np.int32)
        self.free = blocks

    def take(self, after: int | None = None) -> int | None:
        """A block that was free, held once: the one behind `after` if it can be, else one in the
        longest run of free ones. None where no block is free."""
        if not self.free:
            return None
        block = 0 if after is None else after + 1
        if after is None or block == len(self.holders) or self.holders[block]:
            block = self._longest_run()
        self.holders[block] = 1
        self.free -= 1
        return block

    def hold(self, block: int) -> None:
        """Once more."""
        assert self.holders[block], "a free block is taken, not held"
        self.holders[block] += 1

    def drop(self, block: int) -> None:
        """Once less; it is free when nothing holds it."""
        assert self.holders[block], "a free block is held by nothing"
        self.holders[block] -= 1
        self.free += int(self.holders[block] == 0)

    def _longest_run(self) -> int:
        edges = np.diff(np.concatenate(([0], self.holders == 0, [0])))
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        longest = int(np.argmax(ends - starts))
        start, end = int(starts[longest]), int(ends[longest])
        return start if not start else (start + end) // 2  # the sequence in front of it may grow
