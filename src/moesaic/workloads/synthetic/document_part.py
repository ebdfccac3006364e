"""Which tokens of a synthetic document are read: the others need not be made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapreplace
from typing import NamedTuple


class DocumentPart(NamedTuple):
    """Tokens `start` to `end` of document `number`, which has `tokens` of them."""

    number: int
    tokens: int
    start: int
    end: int


def whole_documents(lengths: Iterable[int], tokens: int) -> Iterator[DocumentPart]:
    """The first `tokens` tokens of all documents together; the last one is cut."""
    left = tokens
    for number, length in enumerate(lengths):
        yield DocumentPart(number, length, 0, min(length, left))
        left -= min(length, left)
        if not left:
            return


def parts_of_batch(
    documents: Iterable[DocumentPart], batch: int, steps: int, skip_tokens: int
) -> Iterator[DocumentPart]:
    """What `decode_steps` reads of them: `batch` documents side by side, one token of each in every
    step, a finished one replaced by the next. Lengths alone say when each begins."""
    free = [0] * batch  # heap: the steps at which sequences need their next document
    for number, tokens, start, end in documents:
        skipped = min(skip_tokens, end - start)
        skip_tokens -= skipped
        if skipped == end - start:
            continue
        if free[0] >= steps:
            return
        first, left = start + skipped, steps - free[0]
        heapreplace(free, free[0] + end - first)
        yield DocumentPart(number, tokens, first, min(end, first + left))
