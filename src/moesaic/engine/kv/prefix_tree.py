"""Prefixes that are kept: a tree whose nodes are blocks of tokens.

A node's key is the exact tokens of its block, so two prefixes are never taken for each other. What
a sequence leaves behind its last full block is a leaf of fewer tokens, from which rows are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from moesaic.engine.kv.block_pool import BlockPool
from moesaic.engine.kv.checkpoints import Checkpoints
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.models.attentions.checkpoint import Checkpoint

Tokens = NDArray[np.int64]


@dataclass(eq=False, slots=True)
class Node:
    """`users`: running sequences whose first tokens these are, and copies that are being made."""

    tokens: Tokens  # up to KV_BLOCK
    block: int
    parent: Node | None
    children: dict[bytes, Node] = field(default_factory=dict)
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

    @property
    def length(self) -> int:
        return KV_BLOCK * len(self.path) + self.rows


class PrefixTree:
    """Every node's block is held once by the tree and once by every user."""

    def __init__(self, pool: BlockPool, checkpoints: Checkpoints) -> None:
        self._pool, self._checkpoints = pool, checkpoints
        self._root = Node(np.zeros(0, dtype=np.int64), -1, None)
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []  # a heap; entries may be out of date
        self._pushed = 0
        self.unused = 0  # nodes without users: those behind them have none either

    def match(self, tokens: Tokens) -> Match:
        """Of the first tokens; changes nothing."""
        node, path = self._root, list[Node]()
        while (child := node.children.get(_key(tokens, len(path)))) is not None and _full(child):
            node = child
            path.append(child)
        left = tokens[KV_BLOCK * len(path) :][:KV_BLOCK]
        alike = ((shared(left, child.tokens), child) for child in node.children.values())
        rows, child = max(alike, key=lambda found: (found[0], found[1].used), default=(0, None))
        if child is None:
            return Match(tuple(path))
        differs = rows < min(len(left), len(child.tokens))
        instead = int(child.tokens[rows]) if differs else None
        return Match(tuple(path), child if rows else None, rows, instead)

    def use(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.unused -= not node.users
            node.users += 1
            self._pool.hold(node.block)

    def leave(self, nodes: Sequence[Node]) -> None:
        """The last of them is given up first."""
        for node in reversed(nodes):
            node.users -= 1
            self.unused += not node.users
            self._pool.drop(node.block)
            self._touch(node)

    def publish(self, path: Sequence[Node], tokens: Tokens, block: int) -> Node:
        """Keep a block behind a path, unless the same tokens are kept there already: tables never
        change under a step, so that the sequence goes on with its own block. Of fewer of these
        tokens, what is not used goes, or becomes this node where it is the same block."""
        parent = path[-1] if path else self._root
        node = parent.children.get(tokens.tobytes())
        shorter = [
            child
            for child in parent.children.values()
            if len(child.tokens) < len(tokens)
            and _is_idle(child)
            and shared(child.tokens, tokens) == len(child.tokens)
        ]
        for child in shorter:
            if node is None and child.block == block:
                node = child
                del parent.children[child.tokens.tobytes()]
                child.tokens = tokens.copy()
                parent.children[tokens.tobytes()] = child
        if node is None:
            node = parent.children[tokens.tobytes()] = Node(tokens.copy(), block, parent)
            self._pool.hold(block)
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

    def is_idle(self, node: Node) -> bool:
        """Whether it can be given up."""
        return _is_idle(node)

    def discard(self, nodes: Sequence[Node]) -> None:
        """Of a path that was left: give up what nothing else uses, from its end."""
        for node in reversed(nodes):
            if node.parent is None or not _is_idle(node):
                return
            self._remove(node)

    def surrender(self, node: Node) -> int:
        """Give up a leaf that is not used; its block is the caller's, held once."""
        assert _is_idle(node), "another sequence uses it"
        self._pool.hold(node.block)
        self._remove(node)
        return node.block

    def evict(self) -> bool:
        """Give up the leaf that was not used for longest. False where every one is used."""
        while self._leaves:
            used, _, node = heappop(self._leaves)
            if used == node.used and node.parent is not None and _is_idle(node):
                self._remove(node)
                return True
        return False

    def clear(self) -> None:
        """Give up all that is not used."""
        while self.evict():
            pass

    def nodes(self) -> Iterator[Node]:
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
        """To be given up, where it is a leaf without users."""
        if _is_idle(node):
            self._pushed += 1
            heappush(self._leaves, (node.used, self._pushed, node))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.tokens.tobytes()]
        self._checkpoints.drop(node)
        node.parent = None
        self._pool.drop(node.block)
        self.unused -= 1
        if parent is not self._root:
            self._offer(parent)


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
