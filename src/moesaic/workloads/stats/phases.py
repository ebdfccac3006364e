"""A trace's prompts and its answers apart: their routing differs, and so does their use."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.workloads.block import PHASES, RoutingBlock
from moesaic.workloads.source import LazyTrace, TraceSource
from moesaic.workloads.stats.totals import totals


def phases_of(source: TraceSource) -> tuple[str, ...]:
    """The phases that the trace has tokens of."""
    found = totals(source)
    return tuple(phase for phase in PHASES if found[f"{phase}_tokens"])


def of_phase(source: TraceSource, phase: str) -> TraceSource:
    """The tokens of one phase; documents keep their numbers, tokens their positions."""
    number = PHASES.index(phase)

    def blocks() -> Iterator[RoutingBlock]:
        for block in source.blocks():
            wanted = block.phases == number
            if wanted.any():
                yield block.rows(wanted)

    return LazyTrace(source.header, blocks)
