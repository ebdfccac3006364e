"""Decoding one sequence: a layer's experts with minimal overhead. No tensor is created or
inspected; every address is known in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.base import Blocks, LayerExecutor
from moesaic.models.experts.router import Choice

if TYPE_CHECKING:
    from moesaic.kernels import _native
    from moesaic.kernels.native_executor import NativeExecutor
    from moesaic.kernels.native_router import RoutingResult


class SingleToken:
    """The result of a layer is good until the next one's is asked for."""

    def __init__(self, executor: NativeExecutor, width: int, dtype: torch.dtype) -> None:
        from moesaic.kernels.native_format import FLOAT_TYPES

        self._executor, self._width, self._value = executor, width, FLOAT_TYPES[dtype]
        self._out = torch.empty((1, width), dtype=dtype)
        self._out_at = self._out.data_ptr()

    def __call__(
        self, blocks: Blocks, experts: Sequence[int], routing: RoutingResult[Choice]
    ) -> tuple[torch.Tensor, int]:
        """What the experts add up to, and how many nanoseconds they took."""
        chosen = routing.layer_routing
        # The used experts are the first columns: to the kernels, padding is not there.
        top_k = chosen.experts.shape[1] if chosen.counts is None else int(chosen.counts[0])
        taken = self._executor.token(
            blocks,
            experts,
            routing.addresses[:3],
            self._value,
            self._width,
            top_k,
            self._out_at,
        )
        return self._out, taken


def single_token(executor: LayerExecutor, width: int, dtype: torch.dtype) -> SingleToken | None:
    """Nothing where torch computes."""
    native = _native_executor(executor)
    return None if native is None else SingleToken(native, width, dtype)


def pool_of(executor: LayerExecutor) -> _native.Pool | None:
    """The workers of an executor that has all of them in one pool."""
    native = _native_executor(executor)
    return None if native is None else native.pool


def _native_executor(executor: LayerExecutor) -> NativeExecutor | None:
    from moesaic.kernels.instruction_sets import native

    if native() is None:
        return None
    from moesaic.kernels.native_executor import NativeExecutor

    return executor if isinstance(executor, NativeExecutor) else None
