"""How fast the GPU's expert kernels read: `python -m benchmarks.gpu_kernels` (needs CUDA).

One layer's experts per launch pair, over many different experts so that weights come from memory,
in a CUDA graph; experts in HBM, and read from pinned host memory with and without filling a slot.
`--sweep` tries several ways of cutting the work."""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

import torch

from benchmarks.gpu_experts import graph_us
from moesaic.kernels.gpu.experts import GpuExperts, Tuning
from moesaic.kernels.gpu.layout import BlockWords
from moesaic.kernels.gpu.table import write_table
from moesaic.model_info.expert_shape import ExpertShape

SHAPES = {"qwen3-30b-a3b": (2048, 768, 8, 128), "deepseek-v2-lite": (2048, 1408, 6, 64)}
LAYERS = 16


class Case:
    """Tables for several layers' worth of launches, each over other experts."""

    def __init__(
        self, model: str, dtype: str, tokens: int, tuning: Tuning, where: str = "hbm"
    ) -> None:
        hidden, inner, self.top_k, experts = SHAPES[model]
        self.shape, self.dtype, self.tokens = ExpertShape(hidden, inner), dtype, tokens
        self.kernel = GpuExperts(self.shape, dtype, tokens, self.top_k, experts, tuning=tuning)
        size = BlockWords(self.shape, dtype).bytes
        count = self.kernel.table_shape.experts
        layers = LAYERS if where == "hbm" else 2
        blocks = torch.randint(0, 255, (layers * count, size), dtype=torch.uint8, device="cuda")
        slots = torch.zeros(count, size, dtype=torch.uint8, device="cuda")
        if where != "hbm":
            blocks = blocks.cpu().pin_memory()
        self._kept = blocks, slots
        fills = [slots[i].data_ptr() if where == "fill" else 0 for i in range(count)]
        self.tables = []
        for layer in range(layers):
            table = torch.zeros(self.kernel.table_shape.words, dtype=torch.int64)
            chosen = torch.stack([torch.randperm(count)[: self.top_k] for _ in range(tokens)])
            rows = [(chosen.ravel() == e).nonzero()[:, 0].tolist() for e in range(count)]
            used = [e for e in range(count) if rows[e]]
            addresses = [blocks[layer * count + e].data_ptr() for e in used]
            write_table(
                table.numpy(), self.kernel.table_shape, addresses, fills[: len(used)],
                [rows[e] for e in used],
            )  # fmt: skip
            self.tables.append(table.cuda())
        self.bytes = size * sum(int(t[0]) for t in self.tables) / layers
        self.x = torch.randn(tokens, hidden, device="cuda").to(torch.bfloat16)

    def run(self) -> None:
        for table in self.tables:
            self.kernel.launch(table, self.x)

    def us(self) -> float:
        """Per layer."""
        return graph_us(torch, self.run) / len(self.tables)


def measure(
    model: str, dtype: str, tokens: int, where: str = "hbm", tuning: Tuning | None = None
) -> dict[str, Any]:
    tuning = Tuning.of(dtype) if tuning is None else tuning
    case = Case(model, dtype, tokens, tuning, where)
    us = case.us()
    return {
        "model": model, "dtype": dtype, "tokens": tokens, "weights": where, "us": round(us, 2),
        "gb_s": round(case.bytes / us / 1e3, 1), "tuning": tuning,
    }  # fmt: skip


def sweep(model: str, dtype: str) -> list[dict[str, Any]]:
    tried = []
    for tuning in itertools.starmap(
        Tuning, itertools.product((256, 512), (3, 4), (1, 2, 4), (1, 2, 4), (2, 4))
    ):
        tried.append(measure(model, dtype, 1, tuning=tuning))
    return sorted(tried, key=lambda row: row["us"])[:5]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for model in SHAPES:
        for dtype in ("bf16", "int8", "int4"):
            if arguments.sweep:
                rows += sweep(model, dtype)
                continue
            rows += [measure(model, dtype, tokens) for tokens in (1, 8, 64, 256)]
            rows += [measure(model, dtype, 1, where) for where in ("host", "fill")]
    for row in rows:
        print(json.dumps(row) if arguments.json else "  ".join(str(v) for v in row.values()))


if __name__ == "__main__":
    main()
