"""A trace's prompts and its answers apart: their routing differs, and so does their use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moesaic.workloads.block import PHASES, RoutingBlock
from moesaic.workloads.source import LazyTrace, TraceSource


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


def totals(source: TraceSource) -> dict[str, int]:
    """Tokens, documents, and tokens of each phase, of the whole trace."""
    tokens, documents, last = 0, 0, -1
    phases = np.zeros(len(PHASES), np.int64)
    for block in source.blocks():
        if not len(block):
            continue
        tokens += len(block)
        changes = int((block.documents[1:] != block.documents[:-1]).sum())
        documents += changes + int(int(block.documents[0]) != last)
        last = int(block.documents[-1])
        phases += np.bincount(block.phases, minlength=len(PHASES))
    by_phase = {f"{name}_tokens": int(n) for name, n in zip(PHASES, phases, strict=True)}
    return {"tokens": tokens, "documents": documents, **by_phase}
