"""A trace as documents: the unit that lives in a batch. Holds one document at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from moesaic.workloads.block import PHASES, RoutingBlock, join
from moesaic.workloads.source import TraceSource


def documents(source: TraceSource, skip_tokens: int = 0) -> Iterator[RoutingBlock]:
    """Every document, whole, as one block; the first `skip_tokens` tokens of the trace are left
    out, and with them the beginning of the document they end in."""
    return documents_of(source.blocks(), skip_tokens)


def documents_of(blocks: Iterable[RoutingBlock], skip_tokens: int = 0) -> Iterator[RoutingBlock]:
    parts: list[RoutingBlock] = []
    for block in blocks:
        if skip_tokens >= len(block):
            skip_tokens -= len(block)
            continue
        rest, skip_tokens = block.rows(slice(skip_tokens, None)), 0
        cuts = np.flatnonzero(rest.documents[1:] != rest.documents[:-1]) + 1
        for start, end in zip([0, *cuts], [*cuts, len(rest)], strict=True):
            if parts and parts[-1].documents[-1] != rest.documents[start]:
                yield join(parts)
                parts = []
            parts.append(rest.rows(slice(start, end)))
    if parts:
        yield join(parts)


def part_of_phase(document: RoutingBlock, phase: str) -> RoutingBlock:
    """The document's tokens of this phase; all of them where it has none.

    Most sources saw one phase only, and the tokens of the other are the best stand-in there is:
    locality between consecutive tokens is the same text's either way."""
    wanted = document.phases == PHASES.index(phase)
    return document.rows(wanted) if wanted.any() and not wanted.all() else document
