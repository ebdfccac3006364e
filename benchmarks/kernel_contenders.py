"""Who computes in the kernel benchmark: the native kernels, and PyTorch's bf16 linear layers.

Each has a store of its own, larger than any cache, in huge pages, and takes other experts with
every call. Stores hold copies of two experts, even and odd: what is multiplied does not change the
time, and equal results show that all did the same work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional

from benchmarks.kernel_cases import SEED, Case
from moesaic.kernels.base import ExpertKernel, ExpertWeights
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.kernels.reference import ReferenceKernel, block_views
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.model_info.expert_shape import ExpertShape

Call = Callable[[], Any]  # returns the result, [tokens, hidden]


class Contender(Protocol):
    @property
    def by(self) -> str:
        """Whose kernels."""

    @property
    def dtype(self) -> str: ...

    @property
    def expert_bytes(self) -> int:
        """Read for one expert."""

    @property
    def settle_s(self) -> float:
        """How long its threads may stay awake when it is done."""

    def ready(self, case: Case) -> Call:
        """The case, on experts that were not used recently."""


class Ring:
    """A ring over the slots of a store, which are taken in runs; an even number of slots, so that
    even experts stay in even slots."""

    def __init__(self, slots: int) -> None:
        self.slots = slots - slots % 2
        self._next = 0

    def take(self, count: int) -> Any:
        numbers = (torch.arange(count) + self._next) % self.slots
        self._next = (self._next + count + count % 2) % self.slots
        return numbers


class Native:
    """Moesaic's own kernels, in one precision."""

    by = "moesaic"
    settle_s = 0.0

    def __init__(
        self, kernel: NativeKernel, threads: int, experts: list[ExpertWeights], store_bytes: int
    ) -> None:
        self.dtype = kernel.dtype
        self.executor = NativeExecutor(kernel, threads)
        self.expert_bytes = int(self.executor.runner.block_bytes)
        self.store = filled_store(kernel, experts, store_bytes)
        self._blocks = self.store.layer(0)
        self._ring = Ring(self.store.experts)

    def ready(self, case: Case) -> Call:
        numbers = self._ring.take(case.experts)
        chosen, ids = numbers.tolist(), numbers[case.ids]
        out = torch.empty_like(case.hidden)

        def call() -> Any:
            self.executor.layer(self._blocks, chosen, case.hidden, ids, case.weights, out)
            return out

        return call


class PyTorch:
    """Linear layers in bf16, gate and up as one. Who gets which tokens is known beforehand.

    Its threads sleep between products, unless the environment has OMP_WAIT_POLICY=active: on two
    cores with a neighbour that is several times slower, on a quiet machine somewhat faster."""

    by, dtype = "pytorch", "bf16"
    settle_s = 0.02

    def __init__(self, shape: ExpertShape, experts: list[ExpertWeights], store_bytes: int) -> None:
        kernel = ReferenceKernel(shape, "bf16")
        self.expert_bytes = kernel.shape.values * 2
        self.store = filled_store(kernel, experts, store_bytes)
        values = map(kernel.values, self.store.layer(0).tensors)
        self._matrices = [block_views(shape, block) for block in values]
        self._ring = Ring(self.store.experts)

    def ready(self, case: Case) -> Call:
        matrices = [self._matrices[number] for number in self._ring.take(case.experts).tolist()]
        shares = [tokens_of(case, expert) for expert in range(case.experts)]

        out = torch.empty_like(case.hidden)

        def call() -> Any:
            out.zero_()
            for (gate_up, down), (rows, weights) in zip(matrices, shares, strict=True):
                x = case.hidden if rows is None else case.hidden[rows]
                gate, up = functional.linear(x, gate_up).chunk(2, dim=-1)
                part = functional.linear(functional.silu(gate) * up, down)
                if rows is None:
                    out.addcmul_(part, weights)
                else:
                    out.index_add_(0, rows, part * weights)
            return out

        return call


def tokens_of(case: Case, expert: int) -> tuple[Any, Any]:
    """Rows of one expert (None: all of them) and their weights as a column."""
    rows, ranks = (case.ids == expert).nonzero(as_tuple=True)
    weights = case.weights[rows, ranks].bfloat16()[:, None]
    return (None if len(rows) == len(case.hidden) else rows), weights


def random_experts(shape: ExpertShape) -> list[ExpertWeights]:
    """Two, of a trained expert's magnitude."""
    generator = torch.Generator().manual_seed(SEED + 1)  # not the hidden states' numbers

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, generator=generator).mul_(columns**-0.5).bfloat16()

    inner, hidden = shape.intermediate, shape.hidden
    return [
        ExpertWeights(matrix(inner, hidden), matrix(inner, hidden), matrix(hidden, inner))
        for _ in range(2)
    ]


def filled_store(
    kernel: ExpertKernel, experts: list[ExpertWeights], store_bytes: int
) -> ExpertStore:
    store = ExpertStore(kernel, 1, slots_for(kernel.block_bytes, store_bytes))
    for number in range(store.experts):
        if number < len(experts):
            kernel.pack(experts[number], store.block(0, number))
        else:
            store.block(0, number).copy_(store.block(0, number % len(experts)))
    return store


def slots_for(expert_bytes: int, store_bytes: int) -> int:
    """At least four: two pairs, never the same one twice in a row."""
    return max(4, store_bytes // expert_bytes)
