"""One phase of one trace in numbers and curves: for comparison with another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moesaic.workloads.source import TraceSource
from moesaic.workloads.stats.load import loads, top_shares
from moesaic.workloads.stats.locality import overlap_by_layer
from moesaic.workloads.stats.phases import of_phase
from moesaic.workloads.stats.sample import MAX_TOKENS, Sample, beginnings, collect, spread
from moesaic.workloads.stats.summary import PARTS as SUMMARY_PARTS
from moesaic.workloads.stats.summary import Statistics, describe_sample

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
    """Of at most `max_tokens` tokens, in documents from all over what is held in memory, or in
    their `first` tokens. Calls `advance` `PARTS` times."""
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
