"""Which blocks of the KV cache running sequences have, and what is kept of those that have ended.

A sequence's table begins with blocks that it shares with every other sequence of the same first
tokens; only the blocks behind them, which nothing else reads, are written. Full blocks are
published while the sequence runs. When blocks run out, what was kept and not used for longest is
given up first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moesaic.engine.kv.block_pool import BlockPool
from moesaic.engine.kv.prefix_tree import Node, PrefixTree, Tokens
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of


class BlockMemory(Protocol):
    """Where the blocks are."""

    table: NDArray[np.int32]  # [slots, blocks of the longest sequence]

    def copy_block(self, source: int, to: int, rows: int) -> None:
        """The first rows of a block, in all layers."""

    def upload_table(self) -> None:
        """Steps from now on read the table as it is."""


@dataclass(slots=True)
class _Sequence:
    """`nodes` are the published blocks it begins with, which stay while it runs; `own` are the
    blocks that it holds itself, whether they are published or not; `count` is how many blocks its
    table has."""

    nodes: list[Node] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    count: int = 0


class KVBlocks:
    def __init__(self, memory: BlockMemory, blocks: int, least: int) -> None:
        """`least`: fewer equal tokens at the end of a prefix are read again, not copied."""
        self.pool = BlockPool(blocks)
        self.tree = PrefixTree(self.pool, least)
        self._memory = memory
        self._sequences = [_Sequence() for _ in memory.table]

    @property
    def available(self) -> int:
        """Blocks that are free or would be if all that is kept were given up."""
        return self.pool.free + self.tree.unused

    def match(self, tokens: Tokens) -> int:
        """How many of the first tokens are kept."""
        return self.tree.match(tokens).length

    def begin(self, slot: int, tokens: Tokens) -> int:
        """An empty slot gets what is kept of these first tokens; returns how many there are."""
        sequence, found = self._sequences[slot], self.tree.match(tokens)
        assert not sequence.count, "the slot is empty"
        self.tree.use(found.path)
        sequence.nodes = [*found.path]
        sequence.count = len(found.path)
        self._memory.table[slot, : sequence.count] = [node.block for node in found.path]
        length = KV_BLOCK * sequence.count
        if found.partial is not None:
            self.tree.use([found.partial])  # it is not given up for the block that it is copied to
            if self._take(slot):
                self._memory.copy_block(found.partial.block, sequence.own[-1], found.rows)
                length += found.rows
            self.tree.leave([found.partial])
        self._memory.upload_table()
        return length

    def grow(self, slot: int, length: int) -> bool:
        """A table for so many tokens. False, and nothing has changed, where blocks are short."""
        sequence = self._sequences[slot]
        missing = blocks_of(length) - sequence.count
        if missing <= 0:
            return True
        if missing > self.available:
            return False
        for _ in range(missing):
            taken = self._take(slot)
            assert taken, "as many are available"
        self._memory.upload_table()
        return True

    def publish(self, slot: int, tokens: Tokens) -> None:
        """The full blocks of these first tokens, which are computed, may be shared from now on."""
        sequence = self._sequences[slot]
        for number in range(len(sequence.nodes), len(tokens) // KV_BLOCK):
            block = int(self._memory.table[slot, number])
            part = tokens[KV_BLOCK * number : KV_BLOCK * (number + 1)]
            node = self.tree.publish(sequence.nodes, part, block)
            self.tree.use([node])
            sequence.nodes.append(node)

    def shrink(self, slot: int, length: int) -> None:
        """Give back the blocks behind so many tokens."""
        sequence, kept = self._sequences[slot], blocks_of(length)
        assert kept >= len(sequence.nodes), "published blocks stay"
        for _ in range(sequence.count - kept):
            self.pool.drop(sequence.own.pop())
        sequence.count = min(sequence.count, kept)

    def end(self, slot: int, tokens: Tokens) -> None:
        """The slot is empty; these first tokens, which are computed, are kept."""
        sequence = self._sequences[slot]
        self.publish(slot, tokens)
        rest = tokens[KV_BLOCK * len(sequence.nodes) :]
        if len(rest) and len(rest) < KV_BLOCK:
            block = int(self._memory.table[slot, len(sequence.nodes)])
            self.tree.publish(sequence.nodes, rest, block)
        for block in sequence.own:
            self.pool.drop(block)
        self.tree.leave(sequence.nodes)
        self._sequences[slot] = _Sequence()

    def published(self, slot: int) -> int:
        """The first tokens that others may share: they stay."""
        return KV_BLOCK * len(self._sequences[slot].nodes)

    def owned(self, slot: int) -> tuple[int, ...]:
        """The blocks that the sequence holds itself."""
        return tuple(self._sequences[slot].own)

    def clear(self) -> None:
        """Nothing is kept."""
        self.tree.clear()

    def _take(self, slot: int) -> bool:
        sequence, row = self._sequences[slot], self._memory.table[slot]
        after = int(row[sequence.count - 1]) if sequence.count else None
        while (block := self.pool.take(after)) is None:
            if not self.tree.evict():
                return False
        row[sequence.count] = block
        sequence.own.append(block)
        sequence.count += 1
        return True
