"""One trace out of several of the same model: a document of each in turn, so that any part of it
has of everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.documents import documents, part_of_phase
from moesaic.workloads.domains import domains_of, with_domains
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.source import LazyTrace, TraceSource

_ROUNDED = 2.0**-7  # bf16 keeps eight bits


def mixture(sources: Sequence[TraceSource], max_tokens: int | None = None) -> LazyTrace:
    """All documents, or as many as have at most `max_tokens` tokens together. What the first
    header says of the recording is kept, its source in words included."""
    header = _shared_header(sources)
    domains: list[str] = []
    tokens = 0
    for which, number, document in _in_turn(sources):
        tokens += len(document)
        if max_tokens is not None and tokens > max_tokens:
            break
        domains.append(_domain(sources[which].header, number))

    def blocks() -> Iterator[RoutingBlock]:
        kept = islice(_in_turn(sources), len(domains))
        for number, (_, _, document) in enumerate(kept):
            yield replace(document, documents=np.full(len(document), number, np.uint32))

    return LazyTrace(with_domains(header, domains) if any(domains) else header, blocks)


def introduced(trace: TraceSource, sources: Sequence[TraceSource], tokens: int) -> LazyTrace:
    """The trace behind the last `tokens` decode tokens of every source. A run places experts by
    the first tokens it sees: one or two documents would speak for all."""
    found = [(source.header, *end) for source in sources for end in _ends(source, tokens)]

    def blocks() -> Iterator[RoutingBlock]:
        every = chain((part for _, _, part in found), documents(trace))
        for number, part in enumerate(every):
            yield replace(part, documents=np.full(len(part), number, np.uint32))

    if not domains_of(trace.header):
        return LazyTrace(trace.header, blocks)
    before = [_domain(header, number) for header, number, _ in found]
    return LazyTrace(with_domains(trace.header, [*before, *domains_of(trace.header)]), blocks)


def _domain(header: TraceHeader, number: int) -> str:
    """What a document is about; empty where its trace does not say."""
    domains = domains_of(header)
    return domains[number] if number < len(domains) else ""


def _ends(source: TraceSource, tokens: int) -> Iterator[tuple[int, RoutingBlock]]:
    """Parts of the last documents that have so many decode tokens together, with their numbers."""
    for number, document in reversed(list(enumerate(documents(source)))):
        answer = part_of_phase(document, "decode")
        part = answer.rows(slice(max(0, len(answer) - tokens), None))
        yield number, part
        tokens -= len(part)
        if tokens <= 0:
            return


def without_repeated_weights(source: TraceSource) -> TraceSource:
    """The trace without its gate weights where they are the scores of the chosen experts once
    more up to rounding, as in models that do not normalise them: a quarter of a file."""
    header = source.header
    if not (header.has_weights and header.has_scores):
        return source
    for block in source.blocks():
        assert block.weights is not None
        assert block.scores is not None
        if not np.allclose(block.weights, block.scores[..., : header.top_k], rtol=_ROUNDED):
            return source
    return LazyTrace(
        replace(header, has_weights=False),
        lambda: (replace(block, weights=None) for block in source.blocks()),
    )


def _in_turn(sources: Sequence[TraceSource]) -> Iterator[tuple[int, int, RoutingBlock]]:
    """Which source, the document's number in it, and the document."""
    for number, round_ in enumerate(zip_longest(*(documents(source) for source in sources))):
        for which, document in enumerate(round_):
            if document is not None:
                yield which, number, document


def _shared_header(sources: Sequence[TraceSource]) -> TraceHeader:
    if not sources:
        raise ImpossibleSetting("no traces were given to mix: give at least one")
    first = sources[0].header
    for source in sources[1:]:
        other = source.header
        plain = replace(other, source=first.source, metadata=first.metadata, seed=first.seed)
        if plain != first:
            raise ImpossibleSetting(
                f"traces of {first.model} and {other.model} cannot be mixed: they must be of one "
                "model, recorded alike"
            )
    return first
