"""Which conversation has which part of the KV cache, in the batcher's thread between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moesaic.engine.insight.facts import Conversation
from moesaic.engine.kv.kv_blocks import KVBlocks
from moesaic.engine.kv.prefix_tree import NONE, Node
from moesaic.engine.request import Request

MOST_KEPT = 64  # that are listed: the ones used last


def of_requests(kv: KVBlocks, requests: Iterable[Request]) -> Iterator[Conversation]:
    """Blocks that several share count for each."""
    for request in requests:
        blocks = 0 if request.slot is None else kv.count(request.slot)
        tokens = request.computed_tokens if request.begun else len(request.prompt)
        yield Conversation(
            request.id, request.client, "waiting" if request.slot is None else "running",
            blocks, tokens, request.cached_tokens,
        )  # fmt: skip


def kept(kv: KVBlocks) -> tuple[list[Conversation], int]:
    """Of ended requests, one entry for every end of a kept prefix that no running request has; and
    how many more there are. A block that several begin with counts for the one used last."""
    ends = [node for node in kv.tree.nodes() if not (node.users or node.children)]
    ends.sort(key=lambda node: -node.used)
    counted: set[Node] = set()
    found: list[Conversation] = []
    for end in ends[:MOST_KEPT]:
        path = list(_path(end))
        own = [node for node in path if node not in counted and not node.users]
        counted.update(own)
        tokens = sum(len(node.tokens) for node in path)
        blocks = sum(node.block != NONE for node in own)
        found.append(Conversation(end.used, "", "kept", blocks, tokens, tokens))
    return found, len(ends) - len(found)


def _path(node: Node) -> Iterator[Node]:
    """From the end of a prefix to its beginning."""
    while node.parent is not None:
        yield node
        node = node.parent
