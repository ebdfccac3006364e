"""How much there is in a trace; the one statistic that needs every token."""

from __future__ import annotations

import numpy as np

from moesaic.workloads.block import PHASES
from moesaic.workloads.source import TraceSource


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
