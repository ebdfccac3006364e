"""Routing from elsewhere as arrays: checked, with the token and layer of a mistake, and cut into
the blocks of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace
from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.header import MAX_EXPERTS, TraceHeader

BLOCK_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class RoutingArrays:
    """Tokens of documents one after another, as the columns of a block but for their types."""

    documents: NDArray[Any]  # [tokens]
    positions: NDArray[Any]  # [tokens]
    phases: NDArray[Any]  # [tokens]
    experts: NDArray[Any]  # [tokens, layers, k], best first
    weights: NDArray[Any] | None = None  # [tokens, layers, k]

    def blocks(self, header: TraceHeader) -> Iterator[RoutingBlock]:
        for begin in range(0, len(self.experts), BLOCK_TOKENS):
            part = slice(begin, begin + BLOCK_TOKENS)
            weights = None if self.weights is None else self.weights[part]
            yield RoutingBlock(
                self.documents[part].astype(np.uint32),
                self.positions[part].astype(np.uint32),
                self.phases[part].astype(np.uint8),
                self.experts[part].astype(f"<u{header.expert_bytes}"),
                None if weights is None else weights.astype(np.float16),
            )


def check_experts(path: object, experts: NDArray[Any], num_experts: int | None = None) -> int:
    """Return how many experts a layer has: the stated number, or the next power of two above the
    highest number, which is how many most models have."""
    if experts.ndim != 3:
        raise BadTrace(
            path, "experts", f"must have 3 dimensions [tokens, layers, k], has {experts.ndim}"
        )
    if experts.dtype.kind not in "iu" or not experts.size:
        found = "it is empty" if not experts.size else f"they are {experts.dtype}"
        raise BadTrace(path, "experts", f"must be whole numbers and not empty: {found}")
    highest = (MAX_EXPERTS if num_experts is None else num_experts) - 1
    wrong = (experts < 0) | (experts > highest)
    if wrong.any():
        token, layer, rank = np.argwhere(wrong)[0]
        said = "" if num_experts is None else f", for there are {num_experts} experts"
        value = experts[token, layer, rank]
        raise BadTrace(
            path,
            "experts",
            f"token {token}, layer {layer}: {value} is not from 0 to {highest}{said}",
        )
    _check_different(path, experts)
    return 1 << int(experts.max()).bit_length() if num_experts is None else num_experts


def _check_different(path: object, experts: NDArray[Any]) -> None:
    ordered = np.sort(experts, axis=-1)
    twice = ordered[..., 1:] == ordered[..., :-1]
    if twice.any():
        token, layer, rank = np.argwhere(twice)[0]
        raise BadTrace(
            path,
            "experts",
            f"must be different within a layer of a token: token {token}, layer {layer} has "
            f"{ordered[token, layer, rank]} twice",
        )


def check_weights(path: object, name: str, weights: NDArray[Any], experts: NDArray[Any]) -> None:
    """Finite and not negative, in the range of half precision."""
    if weights.shape != experts.shape:
        raise BadTrace(path, name, f"must have the shape of experts, {experts.shape}")
    if weights.dtype.kind not in "fiu":
        raise BadTrace(path, name, f"must be numbers, not {weights.dtype}")
    wrong = ~((weights >= 0) & (weights <= np.finfo(np.float16).max))
    if wrong.any():
        token, layer, rank = np.argwhere(wrong)[0]
        value = weights[token, layer, rank]
        raise BadTrace(
            path, name, f"token {token}, layer {layer}: {value} is not a finite number of 0 or more"
        )
