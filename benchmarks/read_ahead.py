"""What reading experts ahead into the CPU's caches saves: `python -m benchmarks.read_ahead`.

Layers of one token, as beside a GPU, with some time between two of them. Their experts are read
from memory (`cold`), were read ahead meanwhile (`ahead`; `half`: the first half of them, one at
least), or are those of the layer before (`hot`). A layer's time in us as Python sees it: median and
quartiles."""

from __future__ import annotations

import argparse
import os
from time import perf_counter_ns

import numpy as np
import torch

from benchmarks.marked_page import table
from moesaic.core.routing import ExpertId
from moesaic.engine.expert_kernel import expert_kernel
from moesaic.machines.captured.cpu_runner import CpuRunner, LayerCall
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.models.synthetic_model import random_expert

MODES = ("cold", "half", "ahead", "hot")
MEMORY = 1 << 30  # bytes of experts: beyond every cache


class Layers:
    """Experts in memory, and calls that take `count` of them at a time, in turn."""

    def __init__(self, shape: ExpertShape, dtype: str, threads: int) -> None:
        kernel = expert_kernel(shape, dtype)
        self.experts = MEMORY // kernel.block_bytes
        self.store = ExpertStore(kernel, 1, self.experts)
        self.store.put(ExpertId(0, 0), random_expert(shape))
        for expert in range(1, self.experts):
            self.store.block(0, expert).copy_(self.store.block(0, 0))
        self.cpu, self._shape, self._next = CpuRunner(shape, dtype, threads, 0), shape, 0
        self._hidden = torch.randn(1, shape.hidden).to(torch.bfloat16)
        self._out = torch.zeros(1, shape.hidden)

    def blocks(self, count: int) -> np.ndarray:
        """Addresses of experts that were not used for long."""
        ids = (self._next + np.arange(count)) % self.experts
        self._next += count
        return np.asarray(self.store.layer(0).addresses[ids])

    def compute(self, blocks: np.ndarray) -> int:
        """How many nanoseconds these take."""
        count, hidden = len(blocks), self._shape.hidden
        ids, chosen = np.arange(count), np.arange(count, dtype=np.int32)
        weights = torch.full((1, count), 0.1)
        call = LayerCall(
            self._hidden.data_ptr(), 1, hidden, 1, count, count, ids.ctypes.data,
            weights.data_ptr(), count, chosen.ctypes.data, blocks.ctypes.data,
            self._out.data_ptr(), 0, 0,
        )  # fmt: skip
        started = perf_counter_ns()
        self.cpu.run(call)
        return perf_counter_ns() - started

    def times(self, mode: str, count: int, between_us: int, rounds: int) -> np.ndarray:
        taken, blocks = [], self.blocks(count)
        for _ in range(rounds):
            taken.append(self.compute(blocks))
            blocks = blocks if mode == "hot" else self.blocks(count)
            deadline = perf_counter_ns() + between_us * 1000
            if mode in ("ahead", "half"):
                self.cpu.read_ahead(blocks if mode == "ahead" else blocks[: max(count // 2, 1)])
            while perf_counter_ns() < deadline:
                self.cpu.read_some()
        return np.percentile(np.array(taken[rounds // 10 :]) / 1e3, [50, 25, 75])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=768)
    parser.add_argument("--dtypes", default="int4,bf16")
    parser.add_argument("--experts", default="1,2,4", help="that the CPU computes of a layer")
    parser.add_argument("--between-us", type=int, default=40)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=1000)
    asked = parser.parse_args()
    rows = []
    for dtype in asked.dtypes.split(","):
        layers = Layers(ExpertShape(asked.hidden, asked.intermediate), dtype, asked.threads)
        for count in map(int, asked.experts.split(",")):
            found = (layers.times(m, count, asked.between_us, asked.rounds) for m in MODES)
            cells = [f"{middle:.1f} ({low:.1f} to {high:.1f})" for middle, low, high in found]
            rows.append([dtype, str(count), *cells])
        layers.cpu.close()
    print(table(["", "experts", *MODES], rows))


if __name__ == "__main__":
    main()
