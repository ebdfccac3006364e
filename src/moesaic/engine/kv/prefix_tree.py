"""Prefixes that are kept: a tree whose nodes are blocks of tokens.

A node's key is the exact tokens of its block, so two prefixes are never taken for each other. What
a sequence leaves behind its last full block is a leaf of fewer tokens, from which rows are copied.

Where there is main memory for it, a node that gives up its block of the KV cache keeps a copy of it
there. From the root on, nodes with a block come first, and then those with a copy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moesaic.engine.kv.block_pool import BlockPool
from moesaic.engine.kv.checkpoints import Checkpoints
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.models.attentions.checkpoint import Checkpoint

Tokens = NDArray[np.int64]
NONE = -1  # no block
_STALE = 4  # times as many offers as nodes that may go are kept
_FEW = 1024  # offers, which are not worth looking through


class BlockCopies(Protocol):
    """Copies of blocks in main memory, by pairs of a block of the KV cache and one there."""

    def store(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks to main memory."""

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy them back."""


@dataclass(eq=False, slots=True)
class Node:
    """`users`: running sequences whose first tokens these are, and copies that are being made."""

    tokens: Tokens  # up to KV_BLOCK
    block: int  # of the KV cache, or NONE
    parent: Node | None
    copy: int = NONE  # block in main memory
    children: dict[bytes, Node] = field(default_factory=dict)
    placed: int = 0  # children that have a block
    users: int = 0
    used: int = 0  # by the tree's clock
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # by length of the prefix


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix that is kept: whole blocks, and rows of one more."""

    path: tuple[Node, ...]
    partial: Node | None = None
    rows: int = 0  # of `partial`
    instead: int | None = None  # the token that is kept behind it, if another one was asked for
    alike: tuple[tuple[Node, int], ...] = ()  # all that begin with some of these rows

    @property
    def length(self) -> int:
        return KV_BLOCK * len(self.path) + self.rows


class _Order(Protocol):
    def __call__(self, node: Node) -> tuple[int, int] | None:
        """What comes first goes first; None: it may not go."""


class _InOrder:
    """Nodes that may go. What is offered may have been used since, or may not go any more: it is
    offered again when it may."""

    def __init__(self, order: _Order) -> None:
        self._order = order
        self._heap: list[tuple[tuple[int, int], int, Node]] = []
        self._pushed, self._most = 0, _FEW

    def __len__(self) -> int:
        """Offers, those that do not count any more among them."""
        return len(self._heap)

    def offer(self, node: Node) -> None:
        place = self._order(node)
        if place is not None:
            self._pushed += 1
            heappush(self._heap, (place, self._pushed, node))
            if len(self._heap) > self._most:
                self._forget_stale()

    def _forget_stale(self) -> None:
        """Where nothing has to go for long, each use of a node is one more offer."""
        valid = {id(entry[2]): entry for entry in self._heap if self._holds(entry)}
        self._heap = list(valid.values())
        heapify(self._heap)
        self._most = max(_FEW, _STALE * len(self._heap))

    def _holds(self, entry: tuple[tuple[int, int], int, Node]) -> bool:
        place, _, node = entry
        return node.parent is not None and place == self._order(node)

    def take(self) -> Node | None:
        while self._heap:
            entry = heappop(self._heap)
            if self._holds(entry):
                return entry[2]
        return None


class PrefixTree:
    """Every node's block is held once by the tree and once by every user."""

    def __init__(
        self,
        pool: BlockPool,
        checkpoints: Checkpoints,
        copies: BlockCopies | None = None,
        most_copies: int = 0,
    ) -> None:
        """`copies`: where `most_copies` blocks can be kept in main memory."""
        self._pool, self._checkpoints, self._copies = pool, checkpoints, copies
        self._copied = BlockPool(most_copies)
        self._root = Node(np.zeros(0, dtype=np.int64), NONE, None)
        self._clock = 0
        self._leaves = _InOrder(_of_blocks)  # that give up their blocks
        self._old_copies = _InOrder(_of_copies)  # that give up their copies
        self.unused = 0  # nodes with a block and without users: those behind them have none either

    @property
    def most_copies(self) -> int:
        return len(self._copied.holders)

    @property
    def copied(self) -> int:
        """Nodes with a copy in main memory."""
        return self.most_copies - self._copied.free

    @property
    def offers(self) -> int:
        """That are kept of nodes which may go, or might when they were made."""
        return len(self._leaves) + len(self._old_copies)

    def match(self, tokens: Tokens) -> Match:
        """Of the first tokens; changes nothing."""
        node, path = self._root, list[Node]()
        while (child := node.children.get(_key(tokens, len(path)))) is not None and _full(child):
            node = child
            path.append(child)
        if not node.children:
            return Match(tuple(path))
        left = tokens[KV_BLOCK * len(path) :][:KV_BLOCK]
        alike = [(child, shared(left, child.tokens)) for child in _beginning(node, left[:1])]
        if alike:
            child, rows = max(alike, key=lambda found: (found[1], found[0].used))
        else:
            child, rows = max(node.children.values(), key=lambda each: each.used), 0
        differs = rows < min(len(left), len(child.tokens))
        instead = int(child.tokens[rows]) if differs else None
        return Match(tuple(path), child if rows else None, rows, instead, tuple(alike))

    def use(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.block != NONE:
                self.unused -= not node.users
                self._pool.hold(node.block)
            node.users += 1

    def leave(self, nodes: Sequence[Node]) -> None:
        """The last of them is given up first."""
        for node in reversed(nodes):
            node.users -= 1
            if node.block != NONE:
                self.unused += not node.users
                self._pool.drop(node.block)
            self._touch(node)

    def load(self, path: Sequence[Node], after: int | None) -> None:
        """Nodes with copies only, one behind the other and used, get blocks, of which as many are
        free."""
        pairs: list[tuple[int, int]] = []
        for node in path:
            after = self._pool.take(after)
            assert after is not None, "as many are free"
            self._place(node, after)
            for _ in range(node.users):
                self._pool.hold(after)
            pairs.append((after, node.copy))
            self._old_copies.offer(node)
        if pairs and self._copies is not None:
            self._copies.load(pairs)

    def read(self, node: Node, block: int) -> None:
        """Another block gets what a node with a copy only has."""
        assert self._copies is not None, "there is main memory for copies"
        self._copies.load([(block, node.copy)])

    def publish(self, path: Sequence[Node], tokens: Tokens, block: int) -> Node:
        """Keep a block behind a path, unless the same tokens are kept there already: tables never
        change under a step, so that the sequence goes on with its own block. Of fewer of these
        tokens, what is not used goes, or becomes this node where it is the same block."""
        parent = path[-1] if path else self._root
        key = tokens.tobytes()
        node = parent.children.get(key)
        shorter = [
            child
            for part, child in parent.children.items()
            if len(part) < len(key) and key.startswith(part) and _is_idle(child)
        ]
        for child in shorter:
            if node is None and child.block == block:
                node = child
                self._forget(node)  # the copy has fewer tokens
                del parent.children[child.tokens.tobytes()]
                child.tokens = tokens.copy()
                parent.children[key] = child
        if node is None:
            node = parent.children[key] = Node(tokens.copy(), NONE, parent)
        if node.block == NONE:
            assert not node.users, "what is used has a block"
            self._pool.hold(block)
            self._place(node, block)
            self.unused += 1
        for child in shorter:
            if child is not node:
                self._checkpoints.move(child, node)
                self._remove(child)
        self._touch(node)
        return node

    def save(self, node: Node, checkpoint: Checkpoint) -> None:
        """Keep it with the node that its prefix ends in, as long as there is room."""
        self._checkpoints.add(node, checkpoint, self._clock)

    def may_surrender(self, node: Node) -> bool:
        """Whether its block can be another's."""
        return node.block != NONE and _is_idle(node)

    def discard(self, nodes: Sequence[Node]) -> None:
        """Of a path that was left: give up what nothing else uses, from its end."""
        for node in reversed(nodes):
            if node.parent is None or not _is_idle(node):
                return
            self._remove(node)

    def surrender(self, node: Node) -> int:
        """Give up a leaf that is not used; its block is the caller's, held once."""
        assert self.may_surrender(node), "another sequence uses it"
        block = node.block
        self._pool.hold(block)
        self._remove(node)
        return block

    def make_room(self, free: int) -> None:
        """Give up blocks until so many are free: those that were not used for longest. Copies of
        them are kept where there is main memory."""
        left: list[tuple[int, Node]] = []
        copy: int | None = None
        while self._pool.free < free:
            node = self._leaves.take()
            assert node is not None, "as many are unused"
            if node.copy == NONE and self._room_for_copy():
                copy = node.copy = self._take_copy(copy)
                left.append((node.block, node))
            if node.copy == NONE:
                assert not node.children, "those without a block would have made room"
                self._remove(node)
            else:
                self._displace(node)
        self._store(left)

    def clear(self) -> None:
        """Give up all that is not used."""
        for node in reversed([*self.nodes()]):  # children first
            if _is_idle(node):
                self._remove(node)

    def nodes(self) -> Iterator[Node]:
        """Parents before their children."""
        waiting = [*self._root.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.used = self._clock
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """To give up its block or its copy, where it may."""
        self._leaves.offer(node)
        self._old_copies.offer(node)

    def _place(self, node: Node, block: int) -> None:
        node.block = block
        assert node.parent is not None, "the root has no block"
        node.parent.placed += 1

    def _displace(self, node: Node) -> None:
        """A node without users has its copy only."""
        parent = node.parent
        assert parent is not None, "the root has no block"
        self._pool.drop(node.block)
        self.unused -= 1
        node.block = NONE
        parent.placed -= 1
        self._offer(node)
        self._offer(parent)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.tokens.tobytes()]
        self._checkpoints.drop(node)
        if node.block != NONE:
            self._pool.drop(node.block)
            self.unused -= 1
            parent.placed -= 1
        self._forget(node)
        node.parent = None
        self._offer(parent)

    def _forget(self, node: Node) -> None:
        if node.copy != NONE:
            self._copied.drop(node.copy)
            node.copy = NONE

    def _room_for_copy(self) -> bool:
        while not self._copied.free:
            node = self._old_copies.take()
            if node is None:
                return False
            if node.block == NONE:
                self._remove(node)
            else:
                self._forget(node)
        return True

    def _take_copy(self, after: int | None) -> int:
        copy = self._copied.take(after)
        assert copy is not None, "there is room"
        return copy

    def _store(self, left: Sequence[tuple[int, Node]]) -> None:
        """Blocks that nodes had before they got their copies. Those side by side have copies side
        by side, so that they go and come back as one."""
        if self._copies is None:
            return
        stored = sorted(
            ((block, node) for block, node in left if node.copy != NONE), key=lambda each: each[0]
        )
        copies = sorted(node.copy for _, node in stored)
        for (_, node), copy in zip(stored, copies, strict=True):
            node.copy = copy
        if stored:
            self._copies.store([(block, node.copy) for block, node in stored])


def _beginning(parent: Node, tokens: Tokens) -> Iterator[Node]:
    """Children that begin with these tokens; with none, none. Their keys are compared, since there
    may be hundreds."""
    wanted = tokens.tobytes()
    return (child for key, child in parent.children.items() if wanted and key.startswith(wanted))


def shared(one: Tokens, other: Tokens) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    unequal = np.flatnonzero(one[:length] != other[:length])
    return int(unequal[0]) if len(unequal) else length


def _key(tokens: Tokens, number: int) -> bytes:
    return tokens[KV_BLOCK * number : KV_BLOCK * (number + 1)].tobytes()


def _full(node: Node) -> bool:
    return len(node.tokens) == KV_BLOCK


def _is_idle(node: Node) -> bool:
    return not node.users and not node.children


def _of_blocks(node: Node) -> tuple[int, int] | None:
    """The one that was not used for longest, of those behind which none has a block."""
    return None if node.users or node.placed or node.block == NONE else (0, node.used)


def _of_copies(node: Node) -> tuple[int, int] | None:
    """First copies of nodes that have their blocks: these can be copied again."""
    if node.copy == NONE:
        return None
    if node.block != NONE:
        return 0, node.used
    return (1, node.used) if _is_idle(node) else None
