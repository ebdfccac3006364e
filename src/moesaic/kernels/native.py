"""Experts computed by the native kernels: tensors are checked here, addresses are what they get.

Precision: bf16 products are summed in fp32 and what lies between them is rounded once; int8 experts
multiply activations that are themselves rounded to int8, with a scale for every 256; int4 experts
multiply bf16 activations in tiles, 16-bit codes in vectors. Sums over experts are kept in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import local
from weakref import WeakSet

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.numa import Nodes
from moesaic.core.routing import UNUSED
from moesaic.kernels import _native
from moesaic.kernels.base import Blocks, ExpertShape, ExpertWeights, LayerCrew
from moesaic.kernels.cores import all_cores, worker_cores
from moesaic.kernels.crossover import DEFAULT
from moesaic.kernels.instruction_sets import ISA_NUMBERS
from moesaic.model_info.expert_block import ALIGNMENT, block_bytes

DTYPES = {"bf16": 0, "int8": 1, "int4": 2}
VALUES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_pytorch_tanh": 2}
SPIN_US = 50.0  # longer than a layer's decision, shorter than its attention


LayerArguments = tuple[
    int, list[int], int, int, int, int, int, int, int, int, int, int, bool, bool
]  # of `_native.Runner.run`


def supports(shape: ExpertShape, dtype: str) -> bool:
    return dtype in DTYPES and shape.activation in ACTIVATIONS


class NativeKernel:
    """Implements `ExpertKernel`. Threads that call `compute` have a crew of their own, each without
    helpers; whoever wants several cores for a layer asks for a `crew`."""

    def __init__(
        self, shape: ExpertShape, dtype: str, isa: str, tiles_from: int | None = None
    ) -> None:
        self.shape, self.dtype, self.isa = shape, dtype, isa
        self.tiles_from = DEFAULT[dtype] if tiles_from is None else tiles_from
        self.block_bytes = block_bytes(dtype, shape.hidden, shape.intermediate)
        self._own = local()

    def workspace(self, tokens: int, top_k: int = 1) -> int:
        return self._crew().runner.workspace_bytes(tokens, top_k)

    def pack(self, weights: ExpertWeights, block: torch.Tensor) -> None:
        pack_with(_packing_pool(), self, weights, block)

    def unpack(self, block: torch.Tensor) -> ExpertWeights:
        """What the block stands for, in fp32."""
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
        self._crew().expert(block, hidden, tokens, weights, out)

    def crew(self, threads: int, nodes: Nodes = (), strict: bool = True) -> LayerCrew:
        """Somebody who computes whole layers with so many threads, the caller's among them; on
        several memory nodes, where experts live on several."""
        if 1 < len(nodes) <= threads:
            from moesaic.kernels.node_crew import NodeCrew

            return NodeCrew(self, threads, nodes, strict)
        return Crew(self, threads, strict=strict)

    def runner(self, pool: _native.Pool) -> _native.Runner:
        shape = self.shape
        return _native.Runner(
            pool,
            DTYPES[self.dtype],
            shape.hidden,
            shape.intermediate,
            ACTIVATIONS[shape.activation],
            ISA_NUMBERS[self.isa],
            self.tiles_from,
        )

    def _crew(self) -> Crew:
        crew: Crew | None = getattr(self._own, "crew", None)
        if crew is None:
            crew = self._own.crew = Crew(self, 1)
        return crew


class Crew:
    """Workers for layers of one kernel; one layer at a time."""

    def __init__(
        self,
        kernel: NativeKernel,
        threads: int,
        cores: Sequence[int] | None = None,
        strict: bool = True,
    ) -> None:
        """`cores` are the workers', beside the caller; by default `threads` says how many."""
        self._kernel, self._strict = kernel, strict
        places = worker_cores(threads) if cores is None else list(cores)
        self.pool = _native.Pool(places, SPIN_US)
        self.runner = kernel.runner(self.pool)
        self._checked: WeakSet[Blocks] = WeakSet()
        self._under_way: tuple[object, ...] = ()  # behind the runner: that ends its work first

    def layer(
        self,
        blocks: Blocks,
        experts: Sequence[int],
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        ragged: bool = False,
    ) -> int:
        call = self._call(blocks, experts, hidden, ids, weights, out, False, ragged)
        return self.runner.run(*call)

    def submit(
        self,
        blocks: Blocks,
        experts: Sequence[int],
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        ragged: bool = False,
    ) -> None:
        """`layer`, begun: everything must stay as it is until `wait` returns, and is kept until
        then: a caller who is interrupted must not take memory away that workers write to."""
        self.wait()
        self._under_way = (blocks, hidden, out)
        self.runner.submit(*self._call(blocks, experts, hidden, ids, weights, out, False, ragged))

    def wait(self) -> None:
        self.runner.wait(False)
        self._under_way = ()

    def _call(
        self,
        blocks: Blocks,
        experts: Sequence[int],
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        add: bool,
        ragged: bool = False,
    ) -> LayerArguments:
        if blocks not in self._checked:  # once: a layer's blocks stay where they are
            for block in blocks.tensors:
                check_block(self._kernel, block)
            self._checked.add(blocks)
        if weights.dtype != torch.float32:
            weights = self._widened = weights.float()  # kept until it was read
        check_layer(self._kernel.shape, hidden, ids, weights, out)
        total = len(blocks.tensors)
        if ragged:
            # The kernels leave out pairs of experts that are not listed: padding becomes one
            # expert more than there are, which nobody lists, so its block is never looked for.
            ids = self._padded = torch.where(ids == UNUSED, total, ids)  # kept until it was read
            total += 1
        tokens, top_k = ids.shape
        return (
            blocks.address,
            list(experts),
            hidden.data_ptr(),
            VALUES[hidden.dtype],
            hidden.stride(0),
            tokens,
            top_k,
            ids.data_ptr(),
            weights.data_ptr(),
            total,
            out.data_ptr(),
            VALUES[out.dtype],
            add,
            self._strict,
        )

    def token(
        self,
        blocks: Blocks,
        experts: Sequence[int],
        addresses: Sequence[int],
        value: int,
        width: int,
        top_k: int,
        out: int,
    ) -> int:
        """`layer` of a single token, of which everything is known already: where its hidden state,
        expert numbers and weights are, and where the result goes, in the hidden state's dtype."""
        hidden, ids, weights = addresses
        return self.runner.run(
            blocks.address,
            list(experts),
            hidden,
            value,
            width,
            1,
            top_k,
            ids,
            weights,
            len(blocks.tensors),
            out,
            value,
            False,
            self._strict,
        )

    def expert(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        """As `ExpertKernel.compute`."""
        check_block(self._kernel, block)
        if tokens is None:
            self._add(block, hidden, weights, out)
            return
        part = torch.zeros((len(tokens), hidden.shape[1]), dtype=torch.float32)
        self._add(block, hidden[tokens], weights, part)
        out.index_add_(0, tokens, part)

    def _add(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        rows = len(hidden)
        if isinstance(weights, float):
            weights = torch.full((rows, 1), weights)
        ids = torch.zeros((rows, 1), dtype=torch.int64)
        weights = weights.float().contiguous()
        blocks = Blocks([block])  # must outlive the call, which gets its address
        self.runner.run(*self._call(blocks, (0,), hidden, ids, weights, out, True))


def pack_with(
    pool: _native.Pool, kernel: NativeKernel, weights: ExpertWeights, block: torch.Tensor
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
    value = dtypes.pop() if len(dtypes) == 1 else None
    if value not in VALUES:
        value = torch.float32
    matrices = [matrix.to(value).contiguous() for matrix in matrices]
    gate, up, down = (matrix.data_ptr() for matrix in matrices)
    try:
        kernel.runner(pool).pack(gate, up, down, VALUES[value], hidden, inner, block.data_ptr())
    except ArithmeticError as damaged:
        raise ImpossibleSetting(
            f"experts in {kernel.dtype} need finite weights, but of an expert {damaged}: the "
            "checkpoint is damaged or was saved from a diverged training. Get it anew, or see with "
            "bf16 experts what it computes."
        ) from None


def check_block(kernel: NativeKernel, block: torch.Tensor) -> None:
    if block.dtype != torch.uint8 or block.dim() != 1 or not block.is_contiguous():
        raise ValueError("a block is one row of bytes")
    if len(block) < kernel.block_bytes:
        raise ValueError(f"a block has {kernel.block_bytes} bytes, this one {len(block)}")
    if block.data_ptr() % ALIGNMENT:
        raise ValueError(f"a block begins at a multiple of {ALIGNMENT} bytes")


def check_layer(
    shape: ExpertShape,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """What would make the kernels read or write elsewhere."""
    if hidden.dtype not in VALUES or hidden.dim() != 2 or hidden.shape[1] != shape.hidden:
        raise ValueError(
            f"hidden states are {tuple(hidden.shape)} {hidden.dtype}; they must be [tokens, "
            f"{shape.hidden}] in fp32, bf16 or fp16"
        )
    if hidden.stride(1) != 1 and shape.hidden > 1:
        raise ValueError("a token's hidden states lie side by side")
    if (
        ids.dtype != torch.int64
        or ids.dim() != 2
        or ids.shape != weights.shape
        or len(ids) != len(hidden)
    ):
        raise ValueError("every token has as many expert numbers (int64) as weights")
    if not (ids.is_contiguous() and weights.is_contiguous()):
        raise ValueError("expert numbers and weights lie row after row")
    if out.shape != hidden.shape or out.dtype not in VALUES or not out.is_contiguous():
        raise ValueError("the result has the shape of the hidden states, row after row")


@cache
def _packing_pool() -> _native.Pool:
    return _native.Pool(worker_cores(len(all_cores())), 0.0)
