"""How well a layer's experts foretell those of the next layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.workloads.stats.sample import Sample

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
    marks = [sample.marks(layer) for layer in range(sample.num_layers)]
    train, tested = [m[~test] for m in marks], [m[test] for m in marks]
    recalls = [_bayes_recall(train, tested, d, sample.top_k) for d in distances]
    return recalls, _popular_recall(train, tested, sample.top_k)


def _bayes_recall(
    train: list[NDArray[np.float32]], test: list[NDArray[np.float32]], distance: int, top_k: int
) -> float:
    """Scores log P(e) + sum over this layer's experts s of log P(s | e), with counts smoothed by
    one; only what was chosen counts, not what was not."""
    recalls = []
    for layer in range(len(train) - distance):
        together = train[layer].T @ train[layer + distance]
        uses = train[layer + distance].sum(axis=0)
        given = np.log((together + 1) / (uses + 2))
        scores = test[layer] @ given + np.log(uses + 1)
        recalls.append(_recall(scores, test[layer + distance], top_k))
    return float(np.mean(recalls)) if recalls else 0.0


def _recall(scores: NDArray[np.float32], truth: NDArray[np.float32], top_k: int) -> float:
    if top_k == scores.shape[1]:
        return 1.0
    guesses = np.argpartition(-scores, top_k, axis=1)[:, :top_k]
    return float(np.take_along_axis(truth, guesses, axis=1).mean())


def _popular_recall(
    train: list[NDArray[np.float32]], test: list[NDArray[np.float32]], top_k: int
) -> float:
    best = [np.argsort(-t.sum(axis=0), kind="stable")[:top_k] for t in train]
    return float(np.mean([m[:, b].mean() for m, b in zip(test, best, strict=True)][1:] or [0.0]))
