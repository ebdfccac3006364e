"""Memory nodes: which cores are close to which memory, and which expert lives where."""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    number: int  # the system's
    cores: tuple[int, ...]  # that this process may use, at least one


Nodes = tuple[Node, ...]


def node_of(expert: int, experts: int, nodes: int) -> int:
    """Neighbouring experts share a node, each node has about as many."""
    return expert * nodes // experts


def experts_of(node: int, experts: int, nodes: int) -> range:
    """The other way round."""
    first, last = (-(-at * experts // nodes) for at in (node, node + 1))
    return range(first, last)


def parse_cores(listed: str) -> tuple[int, ...]:
    """A kernel's list, "0-3,8,10-11"."""
    found: list[int] = []
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
