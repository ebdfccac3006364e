"""Traces side by side: which columns there are, and what stands in their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moesaic.cli.shared.output import UNKNOWN
from moesaic.cli.trace.trace_hits import CACHES, CAPACITIES, HitRates, hit_rates
from moesaic.cli.trace.trace_hits import PARTS as HIT_PARTS
from moesaic.workloads.source import TraceSource
from moesaic.workloads.stats.phases import PARTS as PROFILE_PARTS
from moesaic.workloads.stats.phases import TraceProfile, phases_of, profile_trace
from moesaic.workloads.stats.summary import WINDOW

PARTS = PROFILE_PARTS + HIT_PARTS  # of the work for one column

# Statistic -> what a reader calls it, in the order of the rows.
LOAD = {
    "gini": "inequality of the load (Gini)",
    "entropy": "entropy of the load, over the most there can be",
    "share_top_25": "traffic of the busiest quarter of the experts",
    "max_over_mean": "busiest expert, over the mean",
    "min_over_mean": "least used expert, over the mean",
    "gini_document": f"Gini within {WINDOW} tokens of a document",
    "gini_apart": f"Gini within {WINDOW} unrelated tokens",
}
REUSE = {
    "overlap_1": "experts shared with the previous token",
    "overlap_8": "with the eighth before",
    "overlap_document": "with any other token of the document",
    "overlap_global": "if drawn from the whole trace's load",
    "overlap_uniform": "if drawn from all experts alike",
    "reuse_rank_1": "best expert chosen again by the next token",
    "reuse_rank_4": "fourth best chosen again",
}
LAYERS = {
    "predict_1": "next layer's experts predicted by this layer's",
    "predict_popular": "by popularity alone",
}
BATCHES = {
    "active_8": "experts active in 8 unrelated tokens",
    "active_32": "in 32",
    "active_128": "in 128",
}
HITS = {
    f"{cache}_{capacity:g}": f"hits of {name}, {capacity:g} % of the experts cached"
    for cache, name in zip(CACHES, ("LRU", "MRS", "Belady"), strict=True)
    for capacity in CAPACITIES
}
ROWS = LOAD | REUSE | LAYERS | BATCHES | HITS


@dataclass(frozen=True, slots=True)
class Column:
    label: str  # "gpt-oss-20b decode"
    file: str
    profile: TraceProfile
    hits: HitRates

    def value(self, row: str) -> float | None:
        """None: the trace cannot say, as where no document is long enough."""
        found = self.hits.get(row)
        return self.profile.statistics.get(row) if found is None else found

    def as_dict(self) -> dict[str, Any]:
        about = self.profile
        return {
            "trace": self.label,
            "file": self.file,
            "model": about.model,
            "phase": about.phase,
            "num_layers": about.layers,
            "num_experts": about.experts,
            "top_k": about.top_k,
            "tokens": about.tokens,
            "documents": about.documents,
            "statistics": about.statistics,
            "hit_rates": self.hits,
            "overlap_by_layer": about.overlap_by_layer,
        }


def work_of(
    sources: Iterable[tuple[str, TraceSource]], phase: str | None
) -> list[tuple[str, TraceSource, str]]:
    """Every phase that a trace has, or the one asked for where it has it: one column each."""
    return [
        (file, source, found)
        for file, source in sources
        for found in phases_of(source)
        if phase in (None, found)
    ]


def columns(
    work: Sequence[tuple[str, TraceSource, str]],
    max_tokens: int,
    advance: Callable[[], object] = lambda: None,
    first: int | None = None,
) -> Iterator[Column]:
    """Calls `advance` `PARTS` times for each."""
    for (file, source, phase), label in zip(work, labels(work), strict=True):
        about = profile_trace(source, phase, max_tokens, advance, first)
        yield Column(label, file, about, hit_rates(about.sample, advance))


def _kind(source: TraceSource, phase: str) -> str:
    return f"{phase}, synthetic" if source.header.synthetic else phase


def labels(work: Sequence[tuple[str, TraceSource, str]]) -> list[str]:
    """Each by its model, or where that is not enough by its file's name, or by its whole path."""
    by_model = [f"{source.header.model} {_kind(source, phase)}" for _, source, phase in work]
    by_name = [f"{Path(file).stem} {_kind(source, phase)}" for file, source, phase in work]
    by_path = [f"{file} {_kind(source, phase)}" for file, source, phase in work]
    models, names = Counter(by_model), Counter(by_name)
    return [
        model if models[model] == 1 else name if names[name] == 1 else path
        for model, name, path in zip(by_model, by_name, by_path, strict=True)
    ]


def table(found: Sequence[Column], rows: Iterable[str] = ROWS) -> list[tuple[str, ...]]:
    """Rows of text: the size of each trace, then its statistics; the first word names the row."""
    about = [column.profile for column in found]
    lines = [
        ("layers", *(str(one.layers) for one in about)),
        ("experts", *(str(one.experts) for one in about)),
        ("top_k", *(str(one.top_k) for one in about)),
        ("tokens", *(str(one.tokens) for one in about)),
        ("documents", *(str(one.documents) for one in about)),
    ]
    for row in rows:
        values = [column.value(row) for column in found]
        lines.append((row, *(UNKNOWN if v is None else f"{v:.3f}" for v in values)))
    return lines
