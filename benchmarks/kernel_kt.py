"""The CPU experts of kt-kernel (kTransformers), where that package is installed: a contender in the
kernel benchmark, never a dependency.

Its classes hold one layer's experts each, in weights they pack themselves from bf16. Its workers
spin beside a spinning caller: as wide as the machine, a call may take a scheduler quantum, so
`--kt-threads` can give it fewer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.kernel_cases import Case
from benchmarks.kernel_contenders import Call, slots_for
from moesaic.kernels.base import ExpertWeights
from moesaic.model_info.expert_shape import ExpertShape

CLASSES = {"bf16": "AMXBF16_MOE", "int8": "AMXInt8_MOE", "int4": "AMXInt4_MOE"}
BITS = {"bf16": 16, "int8": 8, "int4": 4}  # its scales, one per row, are next to nothing
SOURCE_BYTES = 1 << 29  # of bf16 weights that a layer is packed from, about


def version() -> str | None:
    """None: not installed."""
    return metadata.version("kt-kernel") if find_spec("kt_kernel") else None


class Workers:
    """Its pool."""

    def __init__(self, threads: int) -> None:
        self.extension: Any = import_module("kt_kernel").kt_kernel_ext
        config = self.extension.WorkerPoolConfig()
        config.subpool_count = 1
        config.subpool_numa_map = [0]
        config.subpool_thread_count = [threads]
        self.pool: Any = self.extension.CPUInfer(config)

    def run(self, task: Any) -> None:
        self.pool.submit(task)
        self.pool.sync()


class KtKernel:
    by = "kt-kernel"
    settle_s = 0.06

    def __init__(
        self,
        workers: Workers,
        shape: ExpertShape,
        dtype: str,
        experts: list[ExpertWeights],
        store_bytes: int,
        cases: Sequence[Case],
    ) -> None:
        self.dtype = dtype
        self.expert_bytes = shape.values * BITS[dtype] // 8
        self._workers = workers
        largest = max(case.experts for case in cases)
        self._per_layer = max(largest + largest % 2, 2 * (SOURCE_BYTES // (4 * shape.values)))
        # It keeps these addresses.
        self._on_gpu = torch.zeros(self._per_layer, dtype=torch.bool)
        self._numbers = torch.arange(self._per_layer)
        layers = -(-slots_for(self.expert_bytes, store_bytes) // self._per_layer)
        self._source = stacks(experts, self._per_layer)
        self._layers = [self._layer(shape, dtype, cases) for _ in range(layers)]
        del self._source
        self._at = 0

    def _layer(self, shape: ExpertShape, dtype: str, cases: Sequence[Case]) -> Any:
        moe = self._workers.extension.moe
        count = self._per_layer
        top_k = max(case.ids.shape[1] for case in cases)
        config = moe.MOEConfig(
            count, top_k, shape.hidden, shape.intermediate, self._on_gpu.data_ptr()
        )
        config.pool = self._workers.pool.backend_
        config.max_len = max(len(case.hidden) for case in cases)
        if dtype == "bf16":
            gates, ups, downs = ([[one.data_ptr() for one in stack]] for stack in self._source)
            config.gate_projs, config.up_projs, config.down_projs = gates, ups, downs
            config.gate_scales = config.up_scales = config.down_scales = [[0] * count]
        else:
            addresses = (stack.data_ptr() for stack in self._source)
            config.gate_proj, config.up_proj, config.down_proj = addresses
        layer = getattr(moe, CLASSES[dtype])(config)
        self._workers.run(layer.load_weights_task(self._numbers.data_ptr()))
        return layer

    def ready(self, case: Case) -> Call:
        layer, first = self._next(case.experts)
        ids = case.ids + first
        out = torch.empty_like(case.hidden)
        tokens = torch.tensor([len(case.hidden)], dtype=torch.int32)
        tensors = (ids, case.weights, case.hidden, out)

        def call() -> Any:
            addresses = (tensor.data_ptr() for tensor in tensors)
            task = layer.forward_task(tokens.data_ptr(), ids.shape[1], *addresses, False)
            self._workers.run(task)
            return out

        return call

    def _next(self, experts: int) -> tuple[Any, int]:
        """A layer and the first of so many of its experts, even ones first."""
        step = experts + experts % 2
        per_layer = max(1, self._per_layer // step)
        self._at = (self._at + 1) % (per_layer * len(self._layers))
        layer, slot = divmod(self._at, per_layer)
        return self._layers[layer], slot * step


def stacks(experts: list[ExpertWeights], count: int) -> list[Any]:
    """Gates, ups and downs of `count` experts, each stack contiguous."""
    return [
        torch.stack([getattr(experts[i % len(experts)], name) for i in range(count)])
        for name in ("gate", "up", "down")
    ]
