"""How well a layer's experts predict those of the next layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED
from moesaic.workloads.stats.sample import Sample

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
    """Of every layer but the first, like the others."""
    recalls = []
    for now, then in zip(train[1:], test[1:], strict=True):
        uses = np.bincount(now[now != UNUSED], minlength=experts)
        best = np.argsort(-uses, kind="stable")[: now.shape[1]]
        recalls.append(np.isin(then[then != UNUSED], best).mean())
    return float(np.mean(recalls)) if recalls else 0.0
