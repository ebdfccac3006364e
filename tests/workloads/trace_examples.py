"""Small traces for the tests: random but legal, made from a seed."""

from __future__ import annotations

import numpy as np

from moesaic.workloads.block import DECODE, RoutingBlock
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.source import MemoryTrace


def example_header(
    layers: int = 3,
    experts: int = 8,
    top_k: int = 2,
    ranks: int | None = None,
    depth: int = 0,
    weights: bool = True,
    scores: bool | None = None,
    counts: bool = False,
    confidence: bool = False,
) -> TraceHeader:
    stored = top_k if ranks is None else ranks
    return TraceHeader(
        model="tiny",
        num_layers=layers,
        num_experts=experts,
        top_k=top_k,
        ranks=stored,
        forecast_depth=depth,
        forecast_ranks=min(experts, top_k + 1) if depth else 0,
        has_weights=weights,
        has_scores=stored > top_k if scores is None else scores,
        source="an example",
        synthetic=True,
        seed=0,
        metadata={"note": "for tests"},
        has_counts=counts,
        has_confidence=confidence,
    )


def example_block(header: TraceHeader, lengths: list[int], seed: int = 0) -> RoutingBlock:
    """Documents of these lengths with uniformly random routing."""
    rng = np.random.default_rng(seed)
    n, layers = sum(lengths), header.num_layers
    ids = np.dtype(f"<u{header.expert_bytes}")

    def ranked(*shape: int) -> np.ndarray:
        return (
            rng.random((*shape[:-1], header.num_experts)).argsort(-1)[..., : shape[-1]].astype(ids)
        )

    def halves(*shape: int) -> np.ndarray:
        return -np.sort(-rng.random(shape), axis=-1).astype(np.float16)

    def some_known() -> np.ndarray:
        return np.where(rng.random(n) < 0.5, rng.random(n), np.nan).astype(np.float32)

    forecast = (n, layers, header.forecast_depth, header.forecast_ranks)
    return RoutingBlock(
        np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths),
        np.concatenate(
            [np.arange(m, dtype=np.uint32) for m in lengths] or [np.zeros(0, np.uint32)]
        ),
        rng.integers(0, 2, n).astype(np.uint8),
        ranked(n, layers, header.ranks),
        halves(n, layers, header.top_k) if header.has_weights else None,
        halves(n, layers, header.ranks) if header.has_scores else None,
        ranked(*forecast) if header.forecast_depth else None,
        halves(*forecast) if header.forecast_depth else None,
        rng.integers(1, header.top_k + 1, n).astype(np.uint16) if header.has_counts else None,
        *(some_known() if header.has_confidence else None for _ in range(3)),
    )


def example_trace(lengths: list[int], seed: int = 0, **shape: int) -> MemoryTrace:
    header = example_header(**shape)  # type: ignore[arg-type]
    block = example_block(header, lengths, seed)
    block.phases[:] = DECODE
    return MemoryTrace(header, [block])
