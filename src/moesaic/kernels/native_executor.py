"""Computes layers of experts with the native kernels: a worker pool, and a runner on it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from time import perf_counter_ns
from weakref import WeakSet

import torch

from moesaic.core.numa import Nodes, node_of
from moesaic.core.routing import UNUSED
from moesaic.kernels import _native
from moesaic.kernels.base import Blocks
from moesaic.kernels.cores import worker_cores
from moesaic.kernels.native_format import FLOAT_TYPES, NativeFormat, check_block
from moesaic.model_info.expert_shape import ExpertShape

SPIN_US = 50.0  # longer than a layer's decision, shorter than its attention


class NativeExecutor:
    """Implements `LayerExecutor` for one kernel; one layer at a time, whichever threads call."""

    def __init__(
        self,
        kernel: NativeFormat,
        threads: int,
        cores: Sequence[int] | None = None,
        strict: bool = True,
        pool: _native.Pool | None = None,
    ) -> None:
        """`cores`: of the workers, besides the caller; by default `threads` says how many. With
        `pool` another's workers are used."""
        self._kernel, self._strict = kernel, strict
        self._lock = Lock()  # calls are filled in, and their tensors referenced, one at a time
        pinned = worker_cores(threads) if cores is None else list(cores)
        self.pool = _native.Pool(pinned, SPIN_US) if pool is None else pool
        self.runner = kernel.runner(self.pool)
        self._token_call = _native.LayerCall()
        self._token_call.tokens, self._token_call.strict = 1, strict
        self._token_shape: tuple[int, ...] = ()  # of `_token_call`
        self._checked: WeakSet[Blocks] = WeakSet()
        # References to what a submitted layer uses. Declared after the runner, whose destructor
        # waits for the layer.
        self._in_flight: tuple[object, ...] = ()

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
        with self._lock:
            return self.runner.run(self._call(blocks, experts, hidden, ids, weights, out, ragged))

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
        """Start `layer`. Its tensors must not change before `wait` returns. They are referenced
        until then, so that an interrupted caller does not free memory that workers write to."""
        with self._lock:
            self._wait()
            self._in_flight = (blocks, hidden, out)
            self.runner.submit(self._call(blocks, experts, hidden, ids, weights, out, ragged))

    def wait(self) -> None:
        with self._lock:
            self._wait()

    def _wait(self) -> None:
        self.runner.wait(False)
        self._in_flight = ()

    def _call(
        self,
        blocks: Blocks,
        experts: Sequence[int],
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        ragged: bool = False,
    ) -> _native.LayerCall:
        if blocks not in self._checked:  # once: a layer's blocks do not move
            for block in blocks.tensors:
                check_block(self._kernel, block)
            self._checked.add(blocks)
        if weights.dtype != torch.float32:
            weights = self._widened = weights.float()  # referenced until it has been read
        check_layer(self._kernel.shape, hidden, ids, weights, out)
        total = len(blocks.tensors)
        if ragged:
            # The kernels leave out experts that are not listed: padding becomes one expert more
            # than there are, which is never listed, so that its block is never looked up.
            ids = self._padded = torch.where(ids == UNUSED, total, ids)  # referenced, as above
            total += 1
        call = _native.LayerCall()
        call.block_table, call.experts_total = blocks.address, total
        call.experts = list(experts)
        call.hidden, call.hidden_type = hidden.data_ptr(), FLOAT_TYPES[hidden.dtype]
        call.hidden_stride = hidden.stride(0)
        call.tokens, call.top_k = ids.shape
        call.ids, call.weights = ids.data_ptr(), weights.data_ptr()
        call.out, call.out_type = out.data_ptr(), FLOAT_TYPES[out.dtype]
        call.strict = self._strict
        return call

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
        """`layer` of a single token whose addresses are known: of hidden state, expert ids and
        weights, and of the result, which has the hidden state's type (`value`). Nothing is
        checked."""
        call = self._token_call
        with self._lock:
            if (value, width, top_k, out) != self._token_shape:
                self._token_shape = (value, width, top_k, out)
                call.hidden_type = call.out_type = value
                call.hidden_stride, call.top_k, call.out = width, top_k, out
            call.hidden, call.ids, call.weights = addresses
            call.block_table, call.experts_total = blocks.address, len(blocks.tensors)
            call.experts = list(experts)
            return self.runner.run(call)

    def expert(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        """Compute one expert, as `ExpertKernel.compute`."""
        check_block(self._kernel, block)
        if tokens is None:
            self._add(block, hidden, weights, out)
            return
        part = torch.zeros((len(tokens), hidden.shape[1]), dtype=torch.float32)
        self._add(block, hidden[tokens], weights, part)
        out.index_add_(0, tokens, part)

    def whole(self, block: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """One expert of all tokens, with weight 1, in the dtype of `hidden`."""
        check_block(self._kernel, block)
        rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        ids, weights = torch.zeros((len(rows), 1), dtype=torch.int64), torch.ones((len(rows), 1))
        out, blocks = torch.empty_like(rows), Blocks([block])
        self.runner.run(self._call(blocks, (0,), rows, ids, weights, out))
        return out.view(hidden.shape)

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
        blocks = Blocks([block])  # must outlive the call, which has its address
        with self._lock:
            call = self._call(blocks, (0,), hidden, ids, weights, out)
            call.add = True
            self.runner.run(call)


def check_layer(
    shape: ExpertShape,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Refuse what would make the kernels access memory out of bounds."""
    if hidden.dtype not in FLOAT_TYPES or hidden.dim() != 2 or hidden.shape[1] != shape.hidden:
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
    if out.shape != hidden.shape or out.dtype not in FLOAT_TYPES or not out.is_contiguous():
        raise ValueError("the result has the shape of the hidden states, row after row")


# Experts on several NUMA nodes: each is computed by workers of its own node, and never copied.


class NumaExecutor:
    """Implements `LayerExecutor`: one executor per node, concurrently; their results are added in
    the order of the nodes."""

    def __init__(
        self, kernel: NativeFormat, threads: int, nodes: Nodes, strict: bool = True
    ) -> None:
        counts = _threads_per_node(threads, [len(node.cores) for node in nodes])
        # The caller is one of the first node's threads.
        self.executors = [
            NativeExecutor(kernel, count, node.cores[: count if at else count - 1], strict)
            for at, (node, count) in enumerate(zip(nodes, counts, strict=True))
        ]

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
        started = perf_counter_ns()
        per_node: list[list[int]] = [[] for _ in self.executors]
        for expert in experts:
            per_node[node_of(expert, len(blocks.tensors), len(self.executors))].append(expert)
        weights = weights.float().contiguous()
        parts = [torch.empty(hidden.shape) for _ in self.executors]
        for executor, own, part in zip(self.executors[1:], per_node[1:], parts[1:], strict=True):
            executor.submit(blocks, own, hidden, ids, weights, part, ragged)
        self.executors[0].layer(blocks, per_node[0], hidden, ids, weights, parts[0], ragged)
        for executor, part in zip(self.executors[1:], parts[1:], strict=True):
            executor.wait()
            parts[0] += part
        out.copy_(parts[0])
        return perf_counter_ns() - started

    def expert(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        self.executors[0].expert(block, hidden, tokens, weights, out)


def _threads_per_node(threads: int, cores: list[int]) -> list[int]:
    """Threads in proportion to the nodes' cores: at least one each, `threads` in all."""
    counts = [1] * len(cores)
    for _ in range(threads - len(cores)):
        least_used = min(range(len(cores)), key=lambda node: counts[node] / cores[node])
        counts[least_used] += 1
    return counts
