"""How sure the model was while the trace was recorded, and how many experts its tokens used."""

from __future__ import annotations

import numpy as np

from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.source import TraceSource

SURE = 0.7  # MoBiLE keeps a token above this


def certainty(source: TraceSource, max_tokens: int) -> dict[str, float]:
    """Of the first `max_tokens` tokens; empty where the trace knows neither."""
    found: list[RoutingBlock] = []
    if not (source.header.has_counts or source.header.has_confidence):
        return {}
    left = max_tokens
    for block in source.blocks():
        found.append(block.rows(slice(0, left)))
        left -= len(found[-1])
        if left <= 0:
            break
    return _used(found) | _confidence(found)


def _used(blocks: list[RoutingBlock]) -> dict[str, float]:
    counts = [block.counts for block in blocks if block.counts is not None]
    if not counts:
        return {}
    return {"experts_per_token": float(np.concatenate(counts).mean())}


def _confidence(blocks: list[RoutingBlock]) -> dict[str, float]:
    result = {}
    for name in ("top", "margin", "entropy"):
        columns = [getattr(block, name) for block in blocks]
        values = np.concatenate([c for c in columns if c is not None] or [np.zeros(0)])
        known = values[~np.isnan(values)]
        if known.size:
            result[f"confidence_{name}"] = float(known.mean(dtype=float))
        if known.size and name == "top":
            result["confidence_above_70"] = float((known > SURE).mean())
    return result
