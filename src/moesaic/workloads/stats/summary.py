"""All statistics of a trace as one flat table of named numbers: what is printed, stored in
calibrations and compared between real and synthetic traces.

Among them is how sure the model was while the trace was recorded, and how many experts its tokens
used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.source import TraceSource
from moesaic.workloads.stats.load import (
    active_fraction,
    batch_loads,
    entropy,
    gini,
    later_window_loads,
    loads,
    max_over_mean,
    min_over_mean,
    temperatures,
    top_shares,
    window_loads,
)
from moesaic.workloads.stats.locality import (
    document_overlap,
    global_overlap,
    independent_overlap,
    overlap,
    predictability,
    reuse_by_rank,
)
from moesaic.workloads.stats.sample import MAX_TOKENS, Sample, collect

Statistics = dict[str, float]

SHARES = (5, 10, 25, 50, 75)  # per cent of the experts
LAGS = (1, 2, 4, 8, 32)
CACHES = (10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90)  # per cent of the experts
DISTANCES = (1, 2, 3)
BATCHES = (8, 32, 128)
TEMPERATURE_BATCH = 256
WINDOW = 32  # tokens of a document whose load is looked at

# What a prefix of a name means, in the order of printing.
GROUPS = {
    "share_top": "traffic taken by the most used experts of a layer, % of experts",
    "max_over_mean": "load of the busiest expert over the mean",
    "min_over_mean": "load of the least used expert over the mean",
    "entropy": "of the load, over that of equal loads",
    "gini": "inequality of the load: of the trace, of a document's first tokens (document), of as "
    "many further on in it (later), of as many unrelated ones (apart)",
    "overlap": "a token's experts shared with the token this many before (document: with any other "
    "of the document; drift: if independent within the document; global: within the trace)",
    "reuse_rank": "probability that the expert at this score rank is chosen by the next token",
    "lru_cold": "per-layer LRU hit rate, cache emptied at each document, % of experts cached",
    "lru_warm": "per-layer LRU hit rate, cache kept between documents, % of experts cached",
    "predict": "experts this many layers ahead predicted by naive Bayes (popular: by popularity)",
    "active": "experts active in a batch of so many unrelated tokens",
    "experts_at": "share of hot, warm and cold experts in a batch of unrelated tokens",
    "tokens_at": "share of tokens of hot, warm and cold experts in the same batch",
    "weight_rank": "mean gate weight by rank",
    "experts_per_token": "mean, where tokens may use fewer than top-k",
    "confidence": "of the next token, where it is known: mean top probability, its mean lead over "
    "the second (margin), mean entropy in nats, share of tokens with a top probability above 0.7",
}
# The parts of the work, for a progress bar.
PARTS = 6
SURE = 0.7  # MoBiLE keeps a token above this


def describe(
    source: TraceSource, max_tokens: int = MAX_TOKENS, advance: Callable[[], object] = lambda: None
) -> Statistics:
    """Every statistic of the first `max_tokens` tokens; calls `advance` `PARTS` times."""
    sample = collect(source, max_tokens)
    advance()
    return describe_sample(sample, advance) | certainty(source, max_tokens)


def describe_sample(sample: Sample, advance: Callable[[], object] = lambda: None) -> Statistics:
    result: Statistics = {}
    for part in (_load, _locality, _caches, _layers, _batches):
        result |= part(sample)
        advance()
    return result


def group_of(name: str) -> str:
    """The group a statistic belongs to: the longest matching prefix."""
    return max((g for g in GROUPS if name.startswith(g)), key=len)


def _load(sample: Sample) -> Statistics:
    counts = loads(sample)
    shares = top_shares(counts, tuple(s / 100 for s in SHARES))
    result = {f"share_top_{s}": v for s, v in zip(SHARES, shares, strict=True)}
    result["max_over_mean"] = max_over_mean(counts)
    result["min_over_mean"] = min_over_mean(counts)
    result["entropy"] = entropy(counts)
    result |= {"gini": gini(counts), "gini_apart": gini(batch_loads(sample, WINDOW))}
    windows = {"document": window_loads, "later": later_window_loads}
    found = {f"gini_{name}": of(sample, WINDOW) for name, of in windows.items()}
    result |= {name: gini(counts) for name, counts in found.items() if len(counts)}
    result["overlap_global"] = global_overlap(counts, len(sample.ranked), sample.experts_per_token)
    if sample.weights is not None:
        by_rank = _by_rank(sample, sample.weights)
        result |= {f"weight_rank_{r + 1}": float(v) for r, v in enumerate(by_rank)}
    return result


def _by_rank(sample: Sample, weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean weight of every rank, where tokens use it; ranks that none uses are left out."""
    if sample.counts is None:
        return np.asarray(weights.mean(axis=(0, 1), dtype=float))
    some = sample.used.sum(axis=(0, 1))
    used = some > 0
    total = np.where(sample.used, weights, 0).sum(axis=(0, 1), dtype=float)
    return np.asarray(total[used] / (some[used] * sample.num_layers))


def _locality(sample: Sample) -> Statistics:
    """What needs two tokens of one document is left out where no document is long enough."""
    found = {f"overlap_{lag}": overlap(sample, lag) for lag in LAGS}
    found["overlap_document"] = document_overlap(sample)
    result = {name: value for name, value in found.items() if value is not None}
    result["overlap_drift"] = independent_overlap(sample)
    if "overlap_1" in result:
        reuse = reuse_by_rank(sample)
        result |= {f"reuse_rank_{r + 1}": value for r, value in enumerate(reuse)}
    return result


def _caches(sample: Sample) -> Statistics:
    from moesaic.workloads.stats.cache import lru_curve

    fractions = tuple(c / 100 for c in CACHES)
    result: Statistics = {}
    for name, cold in (("lru_cold", True), ("lru_warm", False)):
        curve = lru_curve(sample, fractions, cold)
        result |= {f"{name}_{c}": v for c, v in zip(CACHES, curve, strict=True)}
    return result


def _layers(sample: Sample) -> Statistics:
    distances = tuple(d for d in DISTANCES if d < sample.num_layers)
    recalls, popular = predictability(sample, distances)
    result = {f"predict_{d}": v for d, v in zip(distances, recalls, strict=True)}
    return result | {"predict_popular": popular} if distances else {}


def _batches(sample: Sample) -> Statistics:
    result = {f"active_{b}": active_fraction(sample, b) for b in BATCHES}
    for name, share in temperatures(sample, TEMPERATURE_BATCH).items():
        result[f"experts_at_{TEMPERATURE_BATCH}_{name}"] = share.experts
        result[f"tokens_at_{TEMPERATURE_BATCH}_{name}"] = share.tokens
    return result


def certainty(source: TraceSource, max_tokens: int) -> dict[str, float]:
    """The certainty of the first `max_tokens` tokens; empty where the trace knows neither."""
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
