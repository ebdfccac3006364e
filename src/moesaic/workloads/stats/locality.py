"""How much a token's experts are those of the tokens before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED
from moesaic.workloads.stats.sample import Sample


def overlap(sample: Sample, lag: int = 1) -> float | None:
    """Share of a token's experts that the token `lag` earlier in the same document chose too.
    None: no document is longer than `lag` tokens."""
    by_layer = overlap_by_layer(sample, lag)
    return float(np.mean(by_layer)) if by_layer else None


def overlap_by_layer(sample: Sample, lag: int = 1) -> list[float]:
    """The same for each layer; empty where no document is long enough."""
    document = sample.document_of
    later = np.flatnonzero(document[lag:] == document[:-lag]) + lag
    if not len(later):
        return []
    return [_shared(sample, layer, later, lag) for layer in range(sample.num_layers)]


def _shared(sample: Sample, layer: int, later: NDArray[np.int64], lag: int) -> float:
    chosen = sample.chosen[:, layer]
    now, before = chosen[later], chosen[later - lag]
    shared = (now[:, :, None] == before[:, None, :]).any(axis=2)
    return float(shared.mean() if sample.counts is None else shared[now != UNUSED].mean())


def independent_overlap(sample: Sample) -> float:
    """The overlap there would be if each token drew its experts independently from the load of
    its document: the part of locality that is document-level drift."""
    lengths = sample.lengths
    total = 0.0
    for layer in range(sample.num_layers):
        used = _by_document(sample, layer)
        total += float(((used / lengths[:, None]) ** 2).sum(axis=1) @ lengths)
    return total / (sample.num_layers * sample.experts_per_token * float(lengths.sum()))


def document_overlap(sample: Sample) -> float | None:
    """The overlap of two different tokens of a document, wherever they stand in it. Unlike
    `independent_overlap`, which may draw the same token twice, it does not rise where documents
    are short. None: every document is a single token."""
    lengths = sample.lengths
    pairs = lengths * (lengths - 1)
    if not pairs.any():
        return None
    shared = 0.0
    for layer in range(sample.num_layers):
        used = _by_document(sample, layer)
        in_pairs = (used * (used - 1)).sum(axis=1)
        shared += float((in_pairs / np.maximum(pairs, 1)) @ lengths)
    counted = float(lengths[pairs > 0].sum())
    return shared / (sample.num_layers * sample.experts_per_token * counted)


def _by_document(sample: Sample, layer: int) -> NDArray[np.int64]:
    """How often each document used each expert of a layer, [documents, E]."""
    documents, experts = len(sample.lengths), sample.num_experts
    chosen = sample.chosen[:, layer]
    flat = chosen + (sample.document_of * experts)[:, None]
    if sample.counts is not None:
        flat = flat[chosen != UNUSED]
    return np.bincount(flat.ravel(), minlength=documents * experts).reshape(-1, experts)


def global_overlap(counts: NDArray[np.int64], tokens: int, top_k: float) -> float:
    """The same if experts were drawn from the load of the whole trace."""
    frequency = counts / tokens
    return float((frequency**2).sum(axis=1).mean() / top_k)


def reuse_by_rank(sample: Sample) -> list[float]:
    """Probability that the expert at score rank r is chosen by the next token, for every rank
    the trace has (HybriMoE Fig. 3(b))."""
    document = sample.document_of
    first = np.flatnonzero(document[1:] == document[:-1])
    ranks = sample.ranked.shape[2]
    reused = np.zeros(ranks)
    for layer in range(sample.num_layers):
        following = sample.chosen[first + 1, layer]
        ranked = sample.ranked[first, layer]
        for r in range(ranks):
            reused[r] += (following == ranked[:, r : r + 1]).any(axis=1).mean() if len(first) else 0
    return [float(x) for x in reused / sample.num_layers]


# How well a layer's experts predict those of the next layers.

Chosen = NDArray[np.int64]  # [tokens, k] of one layer

TRAIN_OF = 5  # four documents of five train, the fifth tests


def predictability(sample: Sample, distances: tuple[int, ...]) -> tuple[list[float], float]:
    """Share of a layer's experts found among the k guesses of a naive-Bayes predictor that knows
    the experts chosen `distance` layers earlier, for each distance; and the same share for the k
    most popular experts. Trained and tested on different documents, mean over layers."""
    document = sample.document_of
    last = TRAIN_OF - 1 if len(sample.starts) > TRAIN_OF else len(sample.starts) - 2
    test = document % TRAIN_OF == last
    if test.all() or not test.any():
        test = np.arange(len(document)) >= len(document) // 2  # one document: its second half
    chosen = [np.ascontiguousarray(sample.chosen[:, n], np.int64) for n in range(sample.num_layers)]
    train, tested = [c[~test] for c in chosen], [c[test] for c in chosen]
    recalls = [_bayes_recall(train, tested, d, sample.num_experts) for d in distances]
    return recalls, _popular_recall(train, tested, sample.num_experts)


def _bayes_recall(train: list[Chosen], test: list[Chosen], distance: int, experts: int) -> float:
    """Scores log P(e) + sum over this layer's experts s of log P(s | e), with counts smoothed by
    one; only what was chosen counts, not what was not."""
    recalls = []
    for layer in range(len(train) - distance):
        now, then = train[layer], train[layer + distance]
        known = (now != UNUSED)[:, :, None] & (then != UNUSED)[:, None, :]
        pairs = (now[:, :, None] * experts + then[:, None, :])[known]
        together = np.bincount(pairs, minlength=experts**2).reshape(experts, experts)
        uses = np.bincount(then[then != UNUSED], minlength=experts)
        given = np.log((together + 1) / (uses + 2)).astype(np.float32)
        given = np.concatenate([given, np.zeros((1, experts), np.float32)])  # of `UNUSED`, the last
        scores = np.log(uses + 1).astype(np.float32) + sum(given[s] for s in test[layer].T)
        recalls.append(_recall(scores, test[layer + distance]))
    return float(np.mean(recalls)) if recalls else 0.0


def _recall(scores: NDArray[np.float32], truth: Chosen) -> float:
    top_k = truth.shape[1]
    if top_k == scores.shape[1]:
        return 1.0
    guesses = np.argpartition(-scores, top_k, axis=1)[:, :top_k]
    found = (guesses[:, :, None] == truth[:, None, :]).any(axis=1)  # of every true expert
    return float(found[truth != UNUSED].mean())


def _popular_recall(train: list[Chosen], test: list[Chosen], experts: int) -> float:
    """The mean over every layer but the first, like the others."""
    recalls = []
    for now, then in zip(train[1:], test[1:], strict=True):
        uses = np.bincount(now[now != UNUSED], minlength=experts)
        best = np.argsort(-uses, kind="stable")[: now.shape[1]]
        recalls.append(np.isin(then[then != UNUSED], best).mean())
    return float(np.mean(recalls)) if recalls else 0.0
