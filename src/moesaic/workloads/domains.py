"""What each document of a trace is about, where its header says so (`metadata["domains"]`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moesaic.workloads.header import TraceHeader

DOMAINS = "domains"


def domains_of(header: TraceHeader) -> tuple[str, ...]:
    """One per document, in their order; none where the trace does not say."""
    stated = header.metadata.get(DOMAINS)
    return tuple(map(str, stated)) if isinstance(stated, list | tuple) else ()


def with_domains(header: TraceHeader, domains: Sequence[str]) -> TraceHeader:
    return replace(header, metadata={**header.metadata, DOMAINS: list(domains)})
