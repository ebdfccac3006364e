"""Dense matrices in the native kernels' layout: packed once, multiplied by a pool of workers.

Precision: bf16 products are summed in fp32 and rounded once; int8 and int4 matrices multiply
activations as quantised experts do (see `native.py`).
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from moesaic.kernels import _native
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.crossover import DEFAULT
from moesaic.kernels.instruction_sets import ISA_NUMBERS
from moesaic.kernels.native import NativeKernel, packing_pool
from moesaic.kernels.native_attention import NativeAttention
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.kernels.native_format import DTYPES, FLOAT_TYPES
from moesaic.kernels.native_rows import NativeRows
from moesaic.kernels.quantized_linear import not_finite
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.model_info.expert_shape import ExpertShape

_HUGE_PAGE = 2 << 20


class DenseRunner:
    """Packs a network's dense matrices and multiplies with them. They share it:
    `use` says on which workers, for all of them; `rows` and `attention` compute on these, too."""

    def __init__(self, precision: DensePrecision, isa: str) -> None:
        self.precision, self.isa = precision, isa
        self.tiles_from = dict(DEFAULT)
        self.use(packing_pool())

    @property
    def runner(self) -> DenseRunner:
        """What computes natively."""
        return self

    def use(self, pool: _native.Pool) -> None:
        tiles_from = [self.tiles_from[name] for name in DTYPES]
        self.pool = pool
        self.linear = _native.LinearRunner(pool, ISA_NUMBERS[self.isa], tiles_from)
        self.rows = NativeRows(pool, ISA_NUMBERS[self.isa])
        self.attention = NativeAttention(pool, ISA_NUMBERS[self.isa])
        self._executors: dict[ExpertShape, NativeExecutor] = {}

    def pack(self, weight: torch.Tensor, dtype: str) -> PackedWeight:
        """A copy of a matrix [outputs, inputs], in one of the native precisions."""
        outputs, inputs = weight.shape
        code = DTYPES[dtype]
        memory = byte_buffer(_native.matrix_bytes(code, outputs, inputs))
        matrix = _native.PackedMatrix(code, outputs, inputs, memory.data_ptr())
        source = weight if weight.dtype in FLOAT_TYPES else weight.float()
        source = source.contiguous()
        try:
            number = FLOAT_TYPES[source.dtype]
            self.linear.pack(source.data_ptr(), number, source.stride(0), matrix)
        except ArithmeticError:
            raise not_finite(dtype) from None
        return PackedWeight(matrix, memory, outputs, inputs, self)

    def pack_network(self, shape: ExpertShape, weights: ExpertWeights) -> PackedNetwork:
        """A feed-forward, as an expert's block."""
        kernel = NativeKernel(shape, self.precision.feed_forward, self.isa)
        block = byte_buffer(kernel.block_bytes)
        kernel.pack(weights, block)
        return PackedNetwork(shape, block, self)

    def products(
        self,
        x: torch.Tensor,
        weights: Sequence[PackedWeight],
        biases: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        """x @ weight.T + bias of every weight, in the dtype of x: one call, which prepares the
        inputs once. The weights have one precision."""
        inputs = weights[0].inputs
        if x.dtype not in FLOAT_TYPES or x.shape[-1] != inputs:
            raise ValueError(f"{tuple(x.shape)} {x.dtype} cannot be multiplied with this matrix")
        rows = x.reshape(-1, inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        call = _native.LinearCall()
        call.x, call.type, call.stride = rows.data_ptr(), FLOAT_TYPES[x.dtype], rows.stride(0)
        call.tokens = len(rows)
        results = [torch.empty((len(rows), each.outputs), dtype=x.dtype) for each in weights]
        self.linear.run(call, list(map(_product, weights, biases, results)))
        return [each.view(*x.shape[:-1], each.shape[1]) for each in results]

    def executor(self, shape: ExpertShape) -> NativeExecutor:
        found = self._executors.get(shape)
        if found is None:
            kernel = NativeKernel(shape, self.precision.feed_forward, self.isa)
            found = NativeExecutor(kernel, 1, strict=False, pool=self.pool)
            self._executors[shape] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    matrix: _native.PackedMatrix
    memory: torch.Tensor  # of the matrix
    outputs: int
    inputs: int
    runner: DenseRunner

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias, in the dtype of x."""
        return self.runner.products(x, [self], [bias])[0]

    def unpacked(self) -> torch.Tensor:
        """The weights as they are multiplied, in fp32."""
        rows = torch.empty((self.outputs, self.inputs))
        _native.unpack_rows(self.matrix, 0, self.outputs, rows.data_ptr())
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class PackedNetwork:
    """A feed-forward that every token goes through."""

    shape: ExpertShape
    block: torch.Tensor
    runner: DenseRunner

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.runner.executor(self.shape).whole(self.block, x)


def _product(
    weight: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor
) -> _native.LinearProduct:
    if bias is not None and (bias.dtype != out.dtype or bias.shape != (weight.outputs,)):
        raise ValueError("a bias has the dtype of the inputs and one value for every output")
    product = _native.LinearProduct()
    product.matrix, product.out = weight.matrix, out.data_ptr()
    product.bias = 0 if bias is None else bias.data_ptr()
    return product


def byte_buffer(size: int) -> torch.Tensor:
    """Aligned bytes, in huge pages where they are worth it: matrices are read whole."""
    if size < _HUGE_PAGE:
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError, ValueError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
