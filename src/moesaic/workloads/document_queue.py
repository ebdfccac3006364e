"""The documents of a trace one after another, and the readers that take tokens from them."""

from __future__ import annotations

from typing import Self

from moesaic.workloads.block import RoutingBlock, join
from moesaic.workloads.documents import documents, documents_of, part_of_phase
from moesaic.workloads.source import MadeAsRead, TraceSource


class DocumentQueue:
    """The documents of a trace in order, over and over where wrapping is allowed."""

    def __init__(self, source: TraceSource, skip_tokens: int, wrap: bool) -> None:
        self._source, self._skip, self._wrap = source, skip_tokens, wrap
        self._documents = documents(source, skip_tokens)
        self._round = 0

    @classmethod
    def of_batch(cls, source: TraceSource, batch: int, steps: int, skip_tokens: int) -> Self:
        """For so many decode steps and no more; what they do not read may be missing."""
        queue = cls(source, skip_tokens, wrap=False)
        if isinstance(source, MadeAsRead):
            queue._documents = documents_of(source.blocks_of_batch(batch, steps, skip_tokens))
        return queue

    def next(self, phase: str) -> RoutingBlock | None:
        """The next document's tokens of this phase (all of them where it has none)."""
        following = next(self._documents, None)
        if following is None and self._wrap:
            self._round += 1
            self._documents = documents(self._source, self._skip)
            following = next(self._documents, None)
        if following is None:
            return None
        return _rotated(part_of_phase(following, phase), self._round)


def _rotated(document: RoutingBlock, turn: int) -> RoutingBlock:
    """In later rounds a document begins at another token, so that two copies of it in one batch
    do not route in lockstep."""
    start = int(turn * 0.618 * len(document)) % len(document)
    if start == 0:
        return document
    return join([document.rows(slice(start, None)), document.rows(slice(0, start))])


class Cursor:
    """One place of the batch."""

    def __init__(self, queue: DocumentQueue) -> None:
        self._queue = queue
        self._document: RoutingBlock | None = None
        self._next = 0

    def take(self) -> RoutingBlock | None:
        if self._document is None or self._next == len(self._document):
            self._document, self._next = self._queue.next("decode"), 0
        if self._document is None:
            return None
        self._next += 1
        return self._document.rows(slice(self._next - 1, self._next))


class PromptReader:
    """Prompts read one after another."""

    def __init__(self, queue: DocumentQueue) -> None:
        self._queue = queue
        self._unread: RoutingBlock | None = None

    def take(self, tokens: int) -> list[RoutingBlock]:
        """So many tokens, one block per prompt; fewer where the trace ends."""
        pieces: list[RoutingBlock] = []
        while tokens:
            document = self._unread or self._queue.next("prefill")
            if document is None:
                break
            pieces.append(document.rows(slice(0, tokens)))
            rest = document.rows(slice(tokens, None))
            self._unread = rest if len(rest) else None
            tokens -= len(pieces[-1])
        return pieces
