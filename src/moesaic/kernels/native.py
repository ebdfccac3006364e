"""The native CPU kernels: packing and computing experts. Tensors are checked here; the extension
gets addresses.

Precision: bf16 products are summed in fp32 and intermediate activations rounded once; int8 experts
multiply activations that are themselves quantised to int8, with a scale per 256 inputs; int4
experts multiply bf16 activations in tiles, 16-bit codes in vectors, or bytes where there are no
tiles and many tokens. Sums over experts are fp32.
"""

from __future__ import annotations

from functools import cache
from threading import local

import torch

from moesaic.core.errors import BrokenWeights
from moesaic.core.numa import Nodes
from moesaic.kernels import _native
from moesaic.kernels.base import ExpertWeights, LayerExecutor
from moesaic.kernels.cores import all_cores, worker_cores
from moesaic.kernels.native_executor import NativeExecutor, NumaExecutor
from moesaic.kernels.native_format import (
    ACTIVATIONS,
    DTYPES,
    FLOAT_TYPES,
    NativeFormat,
    check_block,
)
from moesaic.model_info.expert_block import STRIPS
from moesaic.model_info.expert_shape import ExpertShape


def supports(shape: ExpertShape, dtype: str) -> bool:
    return dtype in DTYPES and shape.activation in ACTIVATIONS and shape.unusual is None


class NativeKernel(NativeFormat):
    """Implements `ExpertKernel`. Every thread that calls `compute` has its own single-threaded
    executor; `executor` makes one that computes layers on several cores."""

    layout = STRIPS

    def __init__(
        self, shape: ExpertShape, dtype: str, isa: str, tiles_from: int | None = None
    ) -> None:
        super().__init__(shape, dtype, isa, tiles_from)
        self._own = local()

    def workspace(self, tokens: int, top_k: int = 1) -> int:
        return self._own_executor().runner.workspace_bytes(tokens, top_k)

    def pack(self, weights: ExpertWeights, block: torch.Tensor) -> None:
        pack_with(packing_pool(), self, weights, block)

    def unpack(self, block: torch.Tensor) -> ExpertWeights:
        """The weights of a block, in fp32."""
        check_block(self, block)
        inner, hidden = self.shape.intermediate, self.shape.hidden
        shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
        gate, up, down = (torch.empty(shape) for shape in shapes)
        addresses = (t.data_ptr() for t in (block, gate, up, down))
        _native.unpack(DTYPES[self.dtype], hidden, inner, *addresses)
        return ExpertWeights(gate, up, down)

    def compute(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        self._own_executor().expert(block, hidden, tokens, weights, out)

    def executor(self, threads: int, nodes: Nodes = (), strict: bool = True) -> LayerExecutor:
        """Computes whole layers with so many threads, including the caller's; where experts are
        on several NUMA nodes, with a worker pool on each."""
        if 1 < len(nodes) <= threads:
            return NumaExecutor(self, threads, nodes, strict)
        return NativeExecutor(self, threads, strict=strict)

    def _own_executor(self) -> NativeExecutor:
        """The calling thread's own executor."""
        executor: NativeExecutor | None = getattr(self._own, "executor", None)
        if executor is None:
            executor = self._own.executor = NativeExecutor(self, 1)
        return executor


def pack_with(
    pool: _native.Pool, kernel: NativeFormat, weights: ExpertWeights, block: torch.Tensor
) -> None:
    check_block(kernel, block)
    inner, hidden = kernel.shape.intermediate, kernel.shape.hidden
    matrices = []
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    for name, shape in shapes.items():
        matrix: torch.Tensor = getattr(weights, name)
        if matrix.shape != shape:
            raise ValueError(f"{name} is {tuple(matrix.shape)}; it must be {shape}")
        matrices.append(matrix)
    dtypes = {matrix.dtype for matrix in matrices}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype not in FLOAT_TYPES:
        dtype = torch.float32
    matrices = [matrix.to(dtype).contiguous() for matrix in matrices]
    gate, up, down = (matrix.data_ptr() for matrix in matrices)
    try:
        kernel.runner(pool).pack(
            gate, up, down, FLOAT_TYPES[dtype], hidden, inner, block.data_ptr()
        )
    except ArithmeticError as error:
        raise BrokenWeights(
            f"experts in {kernel.dtype} need finite weights, but of an expert {error}: the "
            "checkpoint is damaged or was saved from a diverged training. Get it anew, or see with "
            "bf16 experts what it computes."
        ) from None


@cache
def packing_pool() -> _native.Pool:
    """All cores, asleep between two jobs."""
    return _native.Pool(worker_cores(len(all_cores())), 0.0)
