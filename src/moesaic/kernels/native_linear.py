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
from moesaic.kernels.quantized_linear import not_finite
from moesaic.kernels.rotated_heads import Angles, HeadNorms
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


# What the layers of a prompt compute between their matrix products, natively and on the same
# workers: norms, rotation of queries and keys, routing. As PyTorch operations each of them wakes
# as many threads as there are cores, and waits for them. Rounded where PyTorch rounds, as in the
# native decode step; a row's bits do not depend on others.

MIN_ROWS = 16  # tokens; fewer are left to PyTorch


class NativeRows:
    """Row operations on one pool of workers, for one instruction set."""

    def __init__(self, pool: _native.Pool, isa: int) -> None:
        self.runner = _native.RowRunner(pool, isa)

    def takes(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether there are enough tokens [tokens, ..., width], rows equally far apart, in the
        weight's dtype."""
        return (
            x.dim() > 1
            and len(x) >= MIN_ROWS
            and x.numel() > 0
            and x.device.type == "cpu"
            and x.dtype in FLOAT_TYPES
            and (x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1 <= x.stride(0)))
            and weight.dtype == x.dtype
            and weight.is_contiguous()
        )

    def takes_sum(self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor) -> bool:
        return (
            self.takes(x, weight)
            and x.dtype == added.dtype == torch.bfloat16
            and x.shape == added.shape
            and added.is_contiguous()
        )

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The norm of inputs that it `takes`."""
        out = torch.empty(x.shape, dtype=x.dtype)
        self.runner.norm(_norm_call(x, weight, eps, out))
        return out

    def add_and_norm(
        self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x + added, and the norm of that; of what it `takes_sum`."""
        total, out = (torch.empty(x.shape, dtype=x.dtype) for _ in range(2))
        call = _norm_call(x, weight, eps, out)
        call.added, call.sum = added.data_ptr(), total.data_ptr()
        self.runner.norm(call)
        return total, out

    def heads(
        self, query: torch.Tensor, key: torch.Tensor, norms: HeadNorms | None, angles: Angles
    ) -> torch.Tensor:
        """Normalises and turns queries and keys [tokens, heads, head] in place: bf16, contiguous.
        Returns the sums of every token's keys: not finite where a value is not."""
        call = _native.HeadsCall()
        call.tokens, call.rope_dim = len(query), angles.dim
        call.interleaved = angles.interleaved
        cos, sin = angles.cos.contiguous(), angles.sin.contiguous()
        call.cos, call.sin = cos.data_ptr(), sin.data_ptr()
        for part, x in ((call.queries, query), (call.keys, key)):
            if x.dtype != torch.bfloat16 or not x.is_contiguous():
                raise ValueError("heads are turned in place: bf16, row after row")
            part.x, part.heads, part.width = x.data_ptr(), x.shape[1], x.shape[2]
        if norms is not None:
            call.eps = norms.eps
            call.queries.norm, call.keys.norm = norms.query.data_ptr(), norms.key.data_ptr()
            call.queries.whole = call.keys.whole = norms.whole
        sums = torch.empty(len(key))
        call.keys.sums = sums.data_ptr()
        self.runner.heads(call)
        return sums


def _norm_call(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> _native.NormCall:
    width = x.shape[-1]
    if weight.shape != (width,):
        raise ValueError("a norm has one weight for every value of a row")
    call = _native.NormCall()
    call.x, call.weight, call.out = x.data_ptr(), weight.data_ptr(), out.data_ptr()
    call.type, call.eps = FLOAT_TYPES[x.dtype], eps
    call.rows, call.width = x.numel() // width, width
    call.stride = x.stride(0) if x.dim() == 2 else width
    return call


# How queries and keys are normalised and turned, for what does it natively.
