"""What sampling a token costs, `python -m benchmarks.sampling`.

One row of random bf16 logits with a vocabulary of 151 936 (Qwen3), for several parameters: on the
host by the engine's sampler, and with CUDA by the kernel of captured steps, beside the argmax that
greedy steps end with (both as graphs, `gpu_us`, the largest of several random numbers). `--engine`:
tokens per second of captured steps that are greedy, that sample, and that bring logits back for the
host to sample from, in turns."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState
from moesaic.machines.real.forward_pass import RowSampling

VOCABULARY = 151_936
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "no filter": {"temperature": 0.7},
    "top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top_k 40": {"temperature": 0.7, "top_k": 40},
    "min_p 0.05": {"temperature": 0.7, "min_p": 0.05},
    "all three": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
}
NUMBERS = (0.05, 0.3, 0.6, 0.95)
REPEATS = 50


def random_logits() -> torch.Tensor:
    """Some two hundred likely tokens before a bulk."""
    seed = torch.Generator().manual_seed(0)
    logits = 2.2 * torch.randn(1, VOCABULARY, generator=seed)
    logits[0, :200] += torch.linspace(14, 0, 200)
    return logits.bfloat16()


def median_us(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        started = perf_counter()
        call()
        seconds.append(perf_counter() - started)
    return round(1e6 * median(seconds[REPEATS // 5 :]), 1)


def on_host(logits: torch.Tensor, params: SamplingParams) -> float:
    row = SamplingState.start(params, [1])
    return median_us(lambda: Sampler().sample(logits, [row]))


def captured_us(launch: Callable[[], object]) -> float:
    """Of one call, as a graph of ten."""
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            launch()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return median_us(replay) / 10


def on_gpu(logits: torch.Tensor, params: SamplingParams) -> float:
    from moesaic.kernels.gpu.sampling import TokenSampling

    there = logits.to("cuda")
    if params.greedy:
        return captured_us(lambda: there.argmax(-1))
    kernel = TokenSampling(1, 1, VOCABULARY)
    found = []
    for number in NUMBERS:
        row = RowSampling(number, params.temperature, params.top_k, params.top_p, params.min_p)
        words = torch.tensor([row.words(VOCABULARY)], dtype=torch.float64, device="cuda")
        found.append(captured_us(lambda words=words: kernel.launch(there, words)))  # type: ignore[misc]
    return round(max(found), 1)


def engine(layers: int, tokens: int, ratio: float) -> None:
    from benchmarks.cuda_engine import Layers, Model, running
    from moesaic.core.report import Timeline
    from moesaic.engine.runner import Runner
    from moesaic.machines.real.forward_pass import ForwardPass, Piece

    params = {"greedy": CASES["greedy"], "sampled": CASES["all three"], "by the host": None}
    sampler = Sampler()

    def step(runner: Runner, routing: Layers, name: str, row: SamplingState) -> float:
        how = sampler.row_sampling(row) if params[name] is not None else None
        started = perf_counter()
        output = runner.step(ForwardPass([Piece(0, [7], sampling=how)], replay=routing.__getitem__))
        sampler.sample(output, [row])
        return perf_counter() - started

    model = Model("qwen3-30b-a3b", layers, "int4", 64, tokens, 1)
    with running(model, "static-experts", ratio, 1, 64, Timeline(enabled=False)) as runner:
        rows = {
            name: SamplingState.start(SamplingParams(seed=1, **(each or CASES["all three"])), [1])
            for name, each in params.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in rows}
        for routing in model.single:
            for name, row in rows.items():
                seconds[name].append(step(runner, routing, name, row))
                runner.free_slot(0)
    rates = {name: round(1 / median(each[len(each) // 4 :]), 1) for name, each in seconds.items()}
    print(json.dumps({"layers": layers, "tokens_per_second": rates}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--cache", type=float, default=1.0, help="resident experts")
    parser.add_argument("--threads", type=int, help="of PyTorch")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    logits = random_logits()
    for name, each in CASES.items():
        params = SamplingParams(seed=1, **each)
        row: dict[str, Any] = {"case": name, "host_us": on_host(logits, params)}
        if torch.cuda.is_available():
            row["gpu_us"] = on_gpu(logits, params)
        print(json.dumps(row), flush=True)
    if arguments.engine:
        engine(arguments.layers, arguments.tokens, arguments.cache)


if __name__ == "__main__":
    main()
