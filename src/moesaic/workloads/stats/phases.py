"""A trace's prompts and its answers apart: their routing differs, and so does their use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from moesaic.workloads.block import PHASES, RoutingBlock
from moesaic.workloads.source import LazyTrace, TraceSource
from moesaic.workloads.stats.load import loads, top_shares
from moesaic.workloads.stats.locality import overlap_by_layer
from moesaic.workloads.stats.sample import MAX_TOKENS, Sample, beginnings, collect, spread
from moesaic.workloads.stats.summary import PARTS as SUMMARY_PARTS
from moesaic.workloads.stats.summary import Statistics, describe_sample


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


# One phase of one trace in numbers and curves: for comparison with another's.

PARTS = SUMMARY_PARTS  # of the work, for a progress bar


@dataclass(frozen=True, slots=True)
class TraceProfile:
    model: str
    phase: str
    layers: int
    experts: int
    top_k: int
    documents: int
    tokens: int  # those looked at
    statistics: Statistics
    load_curve: list[float]  # traffic of the 0, 1, ... E most used experts
    overlap_by_layer: list[float]  # empty: no document has two tokens
    sample: Sample


def profile_trace(
    source: TraceSource,
    phase: str,
    max_tokens: int,
    advance: Callable[[], object] = lambda: None,
    first: int | None = None,
) -> TraceProfile:
    """Statistics of at most `max_tokens` tokens, in documents from all over what is held in memory,
    or in their `first` tokens. Calls `advance` `PARTS` times."""
    header = source.header
    everything = collect(of_phase(source, phase), max(max_tokens, MAX_TOKENS))
    sample = spread(everything if first is None else beginnings(everything, first), max_tokens)
    advance()
    statistics = describe_sample(sample, advance)
    statistics["overlap_uniform"] = header.top_k / header.num_experts
    fractions = tuple(np.arange(header.num_experts + 1) / header.num_experts)
    return TraceProfile(
        model=header.model,
        phase=phase,
        layers=header.num_layers,
        experts=header.num_experts,
        top_k=header.top_k,
        documents=len(sample.lengths),
        tokens=len(sample.ranked),
        statistics=statistics,
        load_curve=top_shares(loads(sample), fractions),
        overlap_by_layer=overlap_by_layer(sample),
        sample=sample,
    )
