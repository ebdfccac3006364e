"""A run of consecutive tokens with their routing, as arrays. Knows no files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.core.errors import BadTrace
from moesaic.workloads.header import TraceHeader

PREFILL = 0
DECODE = 1
PHASES = ("prefill", "decode")  # by number


@dataclass(frozen=True, slots=True)
class RoutingBlock:
    """N tokens. Read-only by convention: blocks are shared, never changed.

    Documents stand one after another, their numbers rising; positions rise within a document.
    Forecasts of layer l at depth d are about layer l + 1 + d; where that is past the last
    layer they are zero and mean nothing."""

    documents: NDArray[np.uint32]  # [N]
    positions: NDArray[np.uint32]  # [N] tokens of the document before this one
    phases: NDArray[np.uint8]  # [N] PREFILL or DECODE
    experts: NDArray[Any]  # [N, L, R] uint8 or uint16, best first
    weights: NDArray[np.float16] | None = None  # [N, L, k] gate weights of the chosen experts
    scores: NDArray[np.float16] | None = None  # [N, L, R] router probabilities
    forecast_experts: NDArray[Any] | None = None  # [N, L, D, P]
    forecast_scores: NDArray[np.float16] | None = None  # [N, L, D, P]
    counts: NDArray[np.uint16] | None = None  # [N] experts used, the first ones; None: all k
    top: NDArray[np.float32] | None = None  # [N] as in `core.confidence`, NaN: unknown
    margin: NDArray[np.float32] | None = None  # [N]
    entropy: NDArray[np.float32] | None = None  # [N]

    def __len__(self) -> int:
        return len(self.documents)

    def rows(self, which: slice | NDArray[Any]) -> RoutingBlock:
        """Some of the tokens: a view for a slice, a copy for an index or a mask."""
        columns: list[Any] = [None if a is None else a[which] for a in self.arrays()]
        return RoutingBlock(*columns)

    def arrays(self) -> Iterator[Any]:
        """Every column or None, in the order of the fields, which is also the order on disk."""
        for name in COLUMNS:
            yield getattr(self, name)


COLUMNS = tuple(RoutingBlock.__slots__)
CONFIDENCE = Confidence._fields


def columns_of(header: TraceHeader, tokens: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, little-endian dtype and shape of every column a block of this trace has."""
    n, layers, ranks = tokens, header.num_layers, header.ranks
    expert = f"<u{header.expert_bytes}"
    yield "documents", "<u4", (n,)
    yield "positions", "<u4", (n,)
    yield "phases", "<u1", (n,)
    yield "experts", expert, (n, layers, ranks)
    if header.has_weights:
        yield "weights", "<f2", (n, layers, header.top_k)
    if header.has_scores:
        yield "scores", "<f2", (n, layers, ranks)
    if header.forecast_depth:
        shape = (n, layers, header.forecast_depth, header.forecast_ranks)
        yield "forecast_experts", expert, shape
        yield "forecast_scores", "<f2", shape
    if header.has_counts:
        yield "counts", "<u2", (n,)
    if header.has_confidence:
        for name in CONFIDENCE:
            yield name, "<f4", (n,)


def join(blocks: Sequence[RoutingBlock]) -> RoutingBlock:
    """The blocks' tokens one after another."""
    if len(blocks) == 1:
        return blocks[0]
    together = zip(*(b.arrays() for b in blocks), strict=True)
    columns: list[Any] = [None if c[0] is None else np.concatenate(c) for c in together]
    return RoutingBlock(*columns)


def check_block(block: RoutingBlock, header: TraceHeader, path: object) -> None:
    """Raise `BadTrace` unless the block is what the header promises."""
    expected = {name: (dtype, shape) for name, dtype, shape in columns_of(header, len(block))}
    for name, array in zip(COLUMNS, block.arrays(), strict=True):
        if name not in expected:
            if array is not None:
                raise BadTrace(path, name, "is not announced in the header")
            continue
        dtype, shape = expected[name]
        if array is None:
            raise BadTrace(path, name, "is announced in the header and missing")
        if array.dtype != np.dtype(dtype) or array.shape != shape:
            found = f"{array.dtype}{list(array.shape)}"
            raise BadTrace(path, name, f"must be {np.dtype(dtype)}{list(shape)}, is {found}")
    _check_values(block, header, path)


def _check_values(block: RoutingBlock, header: TraceHeader, path: object) -> None:
    for name in ("experts", "forecast_experts"):
        ids = getattr(block, name)
        if ids is not None and ids.size and ids.max() >= header.num_experts:
            raise BadTrace(path, name, f"must be below {header.num_experts}, found {ids.max()}")
    for name in ("weights", "scores", "forecast_scores"):
        values = getattr(block, name)
        if values is not None and not np.isfinite(values).all():
            raise BadTrace(path, name, "must be finite numbers")
    _check_tokens(block, header, path)
    if block.phases.size and block.phases.max() > DECODE:
        raise BadTrace(path, "phases", f"must be 0 or 1, found {block.phases.max()}")
    ordered = np.sort(block.experts, axis=-1)
    twice = np.argwhere((ordered[..., 1:] == ordered[..., :-1]).any(axis=-1))
    if twice.size:
        token, layer = twice[0]
        raise BadTrace(path, "experts", f"token {token} has an expert twice in layer {layer}")


def _check_tokens(block: RoutingBlock, header: TraceHeader, path: object) -> None:
    """The columns of tokens other than their routing."""
    counts = block.counts
    if counts is not None and counts.size and not 1 <= counts.min() <= counts.max() <= header.top_k:
        found = f"found {counts.min()} to {counts.max()}"
        raise BadTrace(path, "counts", f"must be from 1 to {header.top_k}, {found}")
    for name in CONFIDENCE:
        values = getattr(block, name)
        maximum = np.inf if name == "entropy" else 1.0
        if values is not None and ((values < 0) | (values > maximum) | np.isinf(values)).any():
            raise BadTrace(
                path, name, "must be a probability" if maximum == 1.0 else "must be finite"
            )


def token_keys(block: RoutingBlock) -> NDArray[np.uint64]:
    """Document and position as one number; strictly rising through a whole trace."""
    return (block.documents.astype(np.uint64) << np.uint64(32)) | block.positions


def check_order(block: RoutingBlock, last_key: int, path: object) -> int:
    """Raise `BadTrace` unless tokens follow each other and `last_key`; returns the new last."""
    keys = token_keys(block)
    if not keys.size:
        return last_key
    if int(keys[0]) <= last_key or not (keys[1:] > keys[:-1]).all():
        raise BadTrace(
            path,
            "documents and positions",
            "documents must stand one after another with rising numbers and rising positions",
        )
    return int(keys[-1])
