"""What experts cost on this GPU: `python -m benchmarks.gpu_experts` (needs PyTorch and CUDA).

The numbers behind a machine description: for several expert shapes and token counts, the time of
one bf16 expert (gate and up, SiLU, down) inside a CUDA graph that runs over many different
experts, so that weights come from memory and launches are free. A straight line through the
one-token times over the experts' sizes gives bandwidth and fixed cost; the largest batch gives
the matrix rate."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

SHAPES = {  # hidden, intermediate
    "qwen3-30b-a3b": (2048, 768),
    "deepseek-v2-lite": (2048, 1408),
    "qwen3-235b-a22b": (4096, 1536),
    "qwen2-57b-a14b": (3584, 2560),
    "mixtral-8x7b": (4096, 14336),
}
TOKENS = (1, 4, 16, 64, 256, 1024)
WEIGHTS_GB = 12  # more than any cache


def expert_us(torch: Any, hidden: int, inner: int, tokens: int) -> float:
    """Microseconds per expert."""
    size = 3 * hidden * inner * 2
    count = max(8, min(256, int(WEIGHTS_GB * 1e9 / size)))
    up = torch.randn(count, 2 * inner, hidden, device="cuda", dtype=torch.bfloat16)
    down = torch.randn(count, hidden, inner, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for i in range(count):
            gate, value = (x @ up[i].T).chunk(2, dim=-1)
            (torch.nn.functional.silu(gate) * value) @ down[i].T

    return graph_us(torch, run) / count


def graph_us(torch: Any, run: Any, repeat: int = 5) -> float:
    """Best time of a function captured in a CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    best = float("inf")
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) * 1000)
    return best


def small_kernel_us(torch: Any) -> float:
    """The spacing of dependent tiny kernels inside a graph."""
    x = torch.ones(2048, device="cuda")

    def run() -> None:
        y = x
        for _ in range(200):
            y = y * 1.0001

    return graph_us(torch, run) / 200


def peak_tflops(torch: Any, n: int = 8192) -> float:
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 10 * 2 * n**3 / graph_us(torch, lambda: [a @ b for _ in range(10)]) / 1e6


def read_gb_s(torch: Any) -> float:
    x = torch.ones(2_000_000_000, device="cuda", dtype=torch.bfloat16)
    size = 2 * int(x.numel())
    return size / graph_us(torch, lambda: x.view(torch.int16).amax()) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    import torch

    times = {
        name: {t: expert_us(torch, *shape, t) for t in TOKENS} for name, shape in SHAPES.items()
    }
    sizes = np.array([3 * h * i * 2 for h, i in SHAPES.values()], dtype=float)
    slope, fixed = np.polyfit(sizes, [times[name][1] for name in SHAPES], 1)
    hidden, inner = SHAPES["mixtral-8x7b"]
    found = {
        "device": torch.cuda.get_device_name(),
        "expert_us": times,
        "one_token_gb_s": 1e-3 / slope,
        "fixed_us": fixed,
        "expert_tflops": 6 * hidden * inner * 1024 / times["mixtral-8x7b"][1024] / 1e6,
        "peak_tflops": peak_tflops(torch),
        "read_gb_s": read_gb_s(torch),
        "small_kernel_us": small_kernel_us(torch),
    }
    print(json.dumps(found, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
