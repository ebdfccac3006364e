"""The part of a trace that the statistics look at, in memory, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadFile
from moesaic.core.routing import UNUSED
from moesaic.workloads.block import join
from moesaic.workloads.source import TraceSource

MAX_TOKENS = 100_000  # bounds memory at some hundred MB; more change nothing in the third digit


@dataclass(frozen=True, slots=True)
class Sample:
    """N tokens of several documents, in order."""

    ranked: NDArray[Any]  # [N, L, R], best first
    top_k: int
    num_experts: int
    starts: NDArray[np.int64]  # [documents + 1] first token of each document, then N
    weights: NDArray[np.float32] | None  # [N, L, k]

    counts: NDArray[np.int64] | None = None  # [N] experts used; None: every token uses all k

    @property
    def chosen(self) -> NDArray[Any]:
        """[N, L, k]; `UNUSED` (and a signed type) from a token's count on."""
        chosen = self.ranked[..., : self.top_k]
        if self.counts is None:
            return chosen
        return np.where(self.used, chosen.astype(np.int64), UNUSED)

    @property
    def used(self) -> NDArray[np.bool_]:
        """[N, 1, k] which of the chosen are used."""
        if self.counts is None:
            return np.ones((len(self.ranked), 1, self.top_k), dtype=np.bool_)
        return np.arange(self.top_k) < self.counts[:, None, None]

    @property
    def experts_per_token(self) -> float:
        return self.top_k if self.counts is None else float(self.counts.mean())

    @property
    def num_layers(self) -> int:
        return int(self.ranked.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    @property
    def document_of(self) -> NDArray[np.int64]:
        """[N] the number of each token's document."""
        return np.repeat(np.arange(len(self.starts) - 1), self.lengths)

    def part(self, start: int, end: int) -> Sample:
        """Consecutive tokens of one document."""
        return self.rows(slice(start, end), np.array([0, end - start], np.int64))

    def until(self, end: int) -> Sample:
        """The tokens before this one, of all documents that begin before it."""
        end = min(end, len(self.ranked))
        return self.rows(slice(0, end), np.append(self.starts[self.starts < end], end))

    def of_documents(self, which: NDArray[np.int64]) -> Sample:
        """The same of some documents only, in the order given."""
        spans = [np.arange(self.starts[d], self.starts[d + 1]) for d in which]
        starts = np.concatenate([[0], np.cumsum(self.lengths[which])])
        return self.rows(np.concatenate(spans), starts)

    def rows(self, which: slice | NDArray[np.int64], starts: NDArray[np.int64]) -> Sample:
        """Some tokens, whose documents begin at `starts`."""
        weights = None if self.weights is None else self.weights[which]
        counts = None if self.counts is None else self.counts[which]
        return Sample(self.ranked[which], self.top_k, self.num_experts, starts, weights, counts)


def collect(source: TraceSource, max_tokens: int = MAX_TOKENS) -> Sample:
    """The first `max_tokens` tokens of a trace."""
    header, blocks, left = source.header, [], max_tokens
    for block in source.blocks():
        blocks.append(block.rows(slice(0, left)))
        left -= len(blocks[-1])
        if left <= 0:
            break
    if not sum(map(len, blocks)):
        raise BadFile(f"the trace of {header.model} has no tokens to describe")
    whole = join(blocks)
    cuts = np.flatnonzero(whole.documents[1:] != whole.documents[:-1]) + 1
    starts = np.concatenate([[0], cuts, [len(whole)]]).astype(np.int64)
    weights = whole.weights if whole.weights is not None else whole.scores
    return Sample(
        whole.experts,
        header.top_k,
        header.num_experts,
        starts,
        None if weights is None else weights[..., : header.top_k].astype(np.float32),
        _fewer(whole.counts, header.top_k),
    )


def _fewer(counts: NDArray[np.uint16] | None, top_k: int) -> NDArray[np.int64] | None:
    """None where every token uses all."""
    return None if counts is None or (counts == top_k).all() else counts.astype(np.int64)


def spread(sample: Sample, tokens: int) -> Sample:
    """At most so many tokens, in documents evenly picked: where a trace is long, its beginning is
    often of one kind. Only the last document may be cut."""
    whole = len(sample.ranked)
    if whole <= tokens:
        return sample
    documents = len(sample.lengths)
    count = max(1, round(documents * tokens / whole))
    which = np.linspace(0, documents - 1, count).round().astype(np.int64)
    return sample.of_documents(which).until(tokens)


def beginnings(sample: Sample, tokens: int) -> Sample:
    """The first tokens of every document only: long and short ones then compare."""
    lengths = np.minimum(sample.lengths, tokens)
    rows = np.concatenate(
        [np.arange(s, s + n) for s, n in zip(sample.starts[:-1], lengths, strict=True)]
    )
    return sample.rows(rows, np.concatenate([[0], np.cumsum(lengths)]))
