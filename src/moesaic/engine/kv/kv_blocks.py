"""Which blocks of the KV cache running sequences have, and what is kept of those that have ended.

A sequence's table begins with blocks that it shares with every other sequence of the same first
tokens; only the blocks behind them, which nothing else reads, are written. Full blocks are
published while the sequence runs. When blocks run out, what was kept and not used for longest is
given up first. Where layers have a window or a state, a kept prefix can only be used up to a
checkpoint of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from moesaic.engine.kv.block_pool import BlockPool
from moesaic.engine.kv.checkpoints import Checkpoints
from moesaic.engine.kv.prefix_tree import (
    NONE,
    BlockCopies,
    Match,
    Node,
    PrefixTree,
    Tokens,
    shared,
)
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.models.attentions.checkpoint import Checkpoint

# Shorter prefixes are read again: a request that waits for another's would lose a whole step.
LEAST_SHARED = 16  # tokens

_NONE: Tokens = np.zeros(0, dtype=np.int64)


class BlockMemory(Protocol):
    """Where the blocks are, and what layers without blocks hold."""

    @property
    def table(self) -> NDArray[np.int32]:
        """[slots, blocks of the longest sequence]"""

    def changed(self, slot: int, first: int) -> None:
        """A row of the table is another one from this block on."""

    def copy_block(self, source: int, to: int, rows: int) -> None:
        """The first rows of a block, in all layers."""

    @property
    def has_checkpoints(self) -> bool:
        """Whether there are layers without blocks."""

    def reaches(self, slot: int, length: int) -> bool:
        """Whether what they hold after so many tokens is there."""

    def save(self, slot: int, length: int) -> Checkpoint:
        """What they hold after so many tokens, which is there."""

    def begin(self, slot: int, length: int, checkpoint: Checkpoint | None = None) -> None:
        """The slot has so many tokens."""


class Running(NamedTuple):
    """A running sequence, and the first of its tokens that are computed."""

    slot: int
    tokens: Tokens


class Difference(NamedTuple):
    """The first token that differs from what is kept."""

    position: int
    kept: int
    asked: int


@dataclass(slots=True)
class _Sequence:
    """`nodes` are the published blocks it begins with, which stay while it runs, and `leaf` is what
    is kept of the block behind them; `own` are the blocks that it holds itself, whether they are
    published or not; `count` is how many blocks its table has."""

    nodes: list[Node] = field(default_factory=list)
    leaf: Node | None = None
    own: list[int] = field(default_factory=list)
    count: int = 0


class _Found(NamedTuple):
    """A prefix to begin with: nodes to share, and the first rows of a block to copy."""

    path: tuple[Node, ...]
    block: int = -1
    rows: int = 0
    node: Node | None = None  # that has the block
    checkpoint: Checkpoint | None = None
    source: int | None = None  # the running sequence that has a checkpoint to be made
    surrenders: bool = False  # the block is taken, not copied

    @property
    def length(self) -> int:
        return KV_BLOCK * len(self.path) + self.rows


class KVBlocks:
    def __init__(
        self,
        memory: BlockMemory,
        blocks: int,
        least: int,
        checkpoint_bytes: int = 0,
        copies: BlockCopies | None = None,
        most_copies: int = 0,
    ) -> None:
        """`least`: fewer equal tokens at the end of a prefix are read again, not copied;
        `checkpoint_bytes`: of host memory for checkpoints, at most; `copies`: where `most_copies`
        blocks that are given up can be kept."""
        self.pool, self.checkpoints = BlockPool(blocks), Checkpoints(checkpoint_bytes)
        self.tree = PrefixTree(self.pool, self.checkpoints, copies, most_copies)
        self.loaded_tokens = 0  # from copies, since the beginning
        self._memory, self._least = memory, least
        self._sequences = [_Sequence() for _ in memory.table]

    @property
    def available(self) -> int:
        """Blocks that are free or would be if all that is kept were given up."""
        return self.pool.free + self.tree.unused

    def match(self, tokens: Tokens, running: Iterable[Running] = ()) -> int:
        """How many of the first tokens a sequence could begin with."""
        return self._find(tokens, running).length

    def difference(self, tokens: Tokens) -> Difference | None:
        """Where these tokens leave what is kept, if they do before its end."""
        match = self.tree.match(tokens)
        if match.instead is None:
            return None
        return Difference(match.length, match.instead, int(tokens[match.length]))

    def begin(
        self, slot: int, tokens: Tokens, running: Iterable[Running] = (), length: int = 0,
        spare: int = 0,
    ) -> int | None:  # fmt: skip
        """An empty slot gets what is kept of these first tokens, and blocks for `length` of them.
        Returns how many tokens there are; None, and nothing has changed, where blocks are short:
        `spare` more must be left over."""
        sequence, found = self._sequences[slot], self._find(tokens, running)
        assert not sequence.count, "the slot is empty"
        fitting = (each for each in self._ways(found) if self._fits(each, length, spare))
        way = next(fitting, None)
        if way is None:
            return None
        held = [] if way.node is None or way.surrenders else [way.node]
        self.tree.use([*way.path, *held])  # nothing of it is given up for another part of it
        surrendered = None
        if way.surrenders and way.node is not None:
            surrendered = self.tree.surrender(way.node)
        self._load(way.path)
        sequence.nodes = [*way.path]
        sequence.count = len(way.path)
        self._memory.table[slot, : sequence.count] = [node.block for node in way.path]
        self._memory.changed(slot, 0)
        if surrendered is not None:
            self._append(slot, surrendered)
        elif way.rows:
            self._copy_rows(slot, way)
        self.tree.leave(held)
        checkpoint = way.checkpoint
        if way.source is not None and self._memory.has_checkpoints:
            checkpoint = self._memory.save(way.source, way.length)
        self._memory.begin(slot, way.length, checkpoint)
        self._take(slot, blocks_of(length) - sequence.count)
        return way.length

    def grow(self, slot: int, length: int, spare: int = 0) -> bool:
        """A table for so many tokens. False, and nothing has changed, where blocks are short."""
        missing = blocks_of(length) - self._sequences[slot].count
        if missing <= 0:
            return True
        if missing + spare > self.available:
            return False
        self._take(slot, missing)
        return True

    def publish(self, slot: int, tokens: Tokens) -> None:
        """The full blocks of these first tokens, which are computed, may be shared from now on."""
        sequence = self._sequences[slot]
        for number in range(len(sequence.nodes), len(tokens) // KV_BLOCK):
            self._leave_leaf(sequence)
            part = tokens[KV_BLOCK * number : KV_BLOCK * (number + 1)]
            block = int(self._memory.table[slot, number])
            node = self.tree.publish(sequence.nodes, part, block)
            self.tree.use([node])
            sequence.nodes.append(node)

    def save(self, slot: int, length: int) -> None:
        """Keep a checkpoint of published tokens."""
        node = self._sequences[slot].nodes[blocks_of(length) - 1]
        self._save(slot, node, length)

    def keep(self, slot: int, tokens: Tokens) -> None:
        """The same of the tokens behind the last full block, too: a sequence that goes on behind
        them copies their rows. With a checkpoint, where there are layers without blocks."""
        self.publish(slot, tokens)
        sequence = self._sequences[slot]
        if not self._memory.reaches(slot, len(tokens)):
            return
        rest = tokens[KV_BLOCK * len(sequence.nodes) :]
        if len(rest):
            self._leave_leaf(sequence)
            block = int(self._memory.table[slot, len(sequence.nodes)])
            sequence.leaf = self.tree.publish(sequence.nodes, rest, block)
            self.tree.use([sequence.leaf])
        end = sequence.leaf or (sequence.nodes[-1] if sequence.nodes else None)
        if end is not None:
            self._save(slot, end, len(tokens))

    def shrink(self, slot: int, length: int) -> None:
        """Give back the blocks behind so many tokens."""
        sequence, kept = self._sequences[slot], blocks_of(length)
        assert kept >= len(sequence.nodes), "published blocks stay"
        for _ in range(sequence.count - kept):
            self.pool.drop(sequence.own.pop())
        sequence.count = min(sequence.count, kept)
        self._memory.changed(slot, sequence.count)

    def end(self, slot: int, tokens: Tokens) -> None:
        """The slot is empty; these first tokens, which are computed, are kept. The caller empties
        the memory's slot afterwards."""
        sequence = self._sequences[slot]
        if len(tokens):
            self.keep(slot, tokens)
        for block in sequence.own:
            self.pool.drop(block)
        self._leave_leaf(sequence)
        self.tree.leave(sequence.nodes)
        self._sequences[slot] = _Sequence()

    def fail(self, slot: int) -> None:
        """The slot is empty, and nothing is kept that only this sequence has computed."""
        sequence = self._sequences[slot]
        nodes = [*sequence.nodes, *([] if sequence.leaf is None else [sequence.leaf])]
        self.drop(slot)
        self.tree.discard(nodes)

    def drop(self, slot: int) -> None:
        """The slot is empty; of what it held, only what was published is kept."""
        self.end(slot, _NONE)

    def published(self, slot: int) -> int:
        """The first tokens that others may share: they stay."""
        sequence = self._sequences[slot]
        behind = 0 if sequence.leaf is None else len(sequence.leaf.tokens)
        return KV_BLOCK * len(sequence.nodes) + behind

    def count(self, slot: int) -> int:
        """The blocks in its table."""
        return self._sequences[slot].count

    def owned(self, slot: int) -> tuple[int, ...]:
        """The blocks that the sequence holds itself."""
        return tuple(self._sequences[slot].own)

    def clear(self) -> None:
        """Nothing is kept."""
        self.tree.clear()

    def _ways(self, found: _Found) -> Iterator[_Found]:
        """To begin with what was found, or with less where blocks are short."""
        yield found
        if found.node is not None and self.tree.may_surrender(found.node):
            yield found._replace(surrenders=True)
        if not self._memory.has_checkpoints:
            yield _Found(found.path)
        yield _Found(())

    def _fits(self, found: _Found, length: int, spare: int) -> bool:
        here = [node for node in found.path if node.block != NONE]
        left = self.available - sum(not node.users for node in here)
        node = found.node
        if node is not None and not found.surrenders:
            # It stays until its rows are copied, and what is loaded before has blocks by then.
            stays = node.block != NONE and not node.users
            if len(found.path) - len(here) + 1 > left - stays:
                return False
        elif found.rows and not found.surrenders and not left:
            return False  # there is no block to copy to
        missing = blocks_of(max(length, found.length)) - len(here)
        return missing + spare <= left

    def _find(self, tokens: Tokens, running: Iterable[Running]) -> _Found:
        match = self.tree.match(tokens)
        if self._memory.has_checkpoints:
            found = _at_checkpoint(match)
        elif match.partial is not None and match.rows >= self._least:
            found = _Found(match.path, match.partial.block, match.rows, match.partial)
        else:
            found = _Found(match.path)
        for other in running:
            found = self._longer(found, match, tokens, other)
        return found

    def _longer(self, found: _Found, match: Match, tokens: Tokens, other: Running) -> _Found:
        """What was found, or the same first tokens of a running sequence, if these are more: its
        full blocks are published."""
        length = shared(tokens, other.tokens)
        whole, rows = divmod(length, KV_BLOCK)
        if length <= found.length or length < self._least or whole > len(match.path):
            return found
        if rows < self._least and not self._memory.has_checkpoints:
            return found  # the tree has the full blocks
        if not self._memory.reaches(other.slot, length):
            return found
        block = int(self._memory.table[other.slot, whole]) if rows else -1
        return _Found(match.path[:whole], block, rows, source=other.slot)

    def _load(self, path: Sequence[Node]) -> None:
        """Blocks for what is only in main memory: the end of a path that is used."""
        away = [node for node in path if node.block == NONE]
        self.tree.make_room(len(away))
        here = len(path) - len(away)
        self.tree.load(away, path[here - 1].block if here else None)
        self.loaded_tokens += KV_BLOCK * len(away)

    def _copy_rows(self, slot: int, found: _Found) -> None:
        self._take(slot)
        block = self._sequences[slot].own[-1]
        if found.node is not None and found.node.block == NONE:
            self.tree.read(found.node, block)
            self.loaded_tokens += found.rows
        else:
            self._memory.copy_block(found.block, block, found.rows)

    def _leave_leaf(self, sequence: _Sequence) -> None:
        if sequence.leaf is not None:
            self.tree.leave([sequence.leaf])
            sequence.leaf = None

    def _save(self, slot: int, node: Node, length: int) -> None:
        memory = self._memory
        wanted = memory.has_checkpoints and length not in node.checkpoints
        if wanted and memory.reaches(slot, length):
            self.tree.save(node, memory.save(slot, length))

    def _take(self, slot: int, blocks: int = 1) -> None:
        """At least as many are available."""
        sequence, row = self._sequences[slot], self._memory.table[slot]
        self.tree.make_room(blocks)
        for _ in range(blocks):
            after = int(row[sequence.count - 1]) if sequence.count else None
            block = self.pool.take(after)
            assert block is not None, "as many are free"
            self._append(slot, block)

    def _append(self, slot: int, block: int) -> None:
        sequence = self._sequences[slot]
        self._memory.table[slot, sequence.count] = block
        sequence.own.append(block)
        sequence.count += 1


def _at_checkpoint(match: Match) -> _Found:
    """The longest part of it that ends with a checkpoint."""
    whole = KV_BLOCK * len(match.path)
    ends = [
        (end, node) for node, rows in match.alike for end in node.checkpoints if end <= whole + rows
    ]
    if ends:
        end, node = max(ends, key=lambda found: found[0])
        return _Found(match.path, node.block, end - whole, node, node.checkpoints[end])
    for count, node in zip(range(len(match.path), 0, -1), reversed(match.path), strict=True):
        if not node.checkpoints:
            continue
        end = max(node.checkpoints)
        if not end % KV_BLOCK:
            return _Found(match.path[:count], checkpoint=node.checkpoints[end])
        rows = end % KV_BLOCK
        return _Found(match.path[: count - 1], node.block, rows, node, node.checkpoints[end])
    return _Found(())
