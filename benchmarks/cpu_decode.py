"""Decode on a CPU alone: the native step beside its physical floor (all bytes that a token reads
over the rate at which the same workers stream memory), with random weights of a known shape.

    python -m benchmarks.cpu_decode [--layers 12] [--threads 16] [--precisions bf16,int8,int4]
        [--context 4000 --kv-dtypes bf16,int8 --rounds 3]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.hardware.caches import stream_bytes
from moesaic.hardware.host import usable_cores
from moesaic.kernels import _native
from moesaic.kernels.instruction_sets import choose
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.kernels.native_linear import DenseRunner, PackedWeight, byte_buffer
from moesaic.machines.cpu_step.native_step import Forced, NativeStep
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.model_info.kv_dtypes import kv_token_bytes
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.synthetic_model import synthetic_decoder


def stream_gb_s(pool: _native.Pool, size: int) -> float:
    """The best of some passes, in one and in four read streams per worker."""
    buffer = byte_buffer(size)
    buffer.fill_(1)
    seconds = [
        pool.stream_seconds(buffer.data_ptr(), len(buffer), multi)
        for _ in range(4)
        for multi in (False, True)
    ]
    return size / min(seconds) / 1e9


def token_bytes(decoder: Decoder, store: ExpertStore, context: int, kv_dtype: str) -> int:
    """That one token reads."""
    spec = decoder.architecture.spec
    head = decoder.output.packed
    read = head.memory.numel() if isinstance(head, PackedWeight) else 0
    for layer in decoder.layers:
        attention = layer.attention
        for name in ("query", "key", "value", "output", "compress"):
            packed = getattr(getattr(attention, name, None), "packed", None)
            read += packed.memory.numel() if packed else 0
        block = layer.feed_forward
        network = getattr(block, "network", None) or getattr(block, "shared", None)
        read += network.packed.block.numel() if network is not None else 0
    experts = spec.num_moe_layers * spec.top_k * store.kernel.block_bytes
    gates = 2 * spec.num_moe_layers * spec.num_experts * spec.hidden_size
    kept = context * spec.num_layers * kv_token_bytes(spec, "bf16", kv_dtype)
    return read + experts + gates + kept


def random_routing(decoder: Decoder, tokens: int, seed: int) -> Forced:
    """Other experts in every step, so that none stay in a cache."""
    spec = decoder.architecture.spec
    random, rows = np.random.default_rng(seed), spec.num_moe_layers * tokens
    chosen = [random.permutation(spec.num_experts)[: spec.top_k] for _ in range(rows)]
    shape = (spec.num_moe_layers, tokens, spec.top_k)
    weights = np.full(shape, 1 / spec.top_k, dtype=np.float32)
    return Forced(np.array(chosen, dtype=np.int64).reshape(shape), weights)


class Steps:
    """Decode steps of a batch whose sequences have the same length."""

    def __init__(
        self, decoder: Decoder, store: ExpertStore, pool: _native.Pool, batch: int, context: int,
        kv_dtype: str,
    ) -> None:  # fmt: skip
        spec = decoder.architecture.spec
        cache = BlockCache(spec, batch, context + 1, torch.bfloat16, kv_dtype=kv_dtype)
        for part in cache.parts:
            part.fill_(1)  # pages that were never written are all the same one
        self._native = NativeStep(decoder, store, cache, pool)
        self._work = ForwardPass([Piece(slot, [slot], first=context) for slot in range(batch)])
        self._routings = [random_routing(decoder, batch, seed) for seed in range(8)]

    def run(self, steps: int) -> tuple[float, np.ndarray]:
        """Median milliseconds, and phases' median microseconds [phases, 2]."""
        taken, phases = [], []
        for number in range(steps):
            forced = self._routings[number % len(self._routings)]
            began = perf_counter_ns()
            result = self._native.run(self._work, forced=forced, timed=True)
            taken.append((perf_counter_ns() - began) / 1e6)
            assert result.phase_times is not None
            phases.append(_durations(result.phase_times.numpy(), began + int(taken[-1] * 1e6)))
        return median(taken), np.median(np.array(phases), axis=0)


def _durations(times: np.ndarray, ended: int) -> np.ndarray:
    """Of every phase: preparing it, and the phase itself, in microseconds."""
    following = np.append(times[1:, 0], ended)
    return np.stack([times[:, 1] - times[:, 0], following - times[:, 1]], axis=1) / 1e3


def phase_lines(phases: np.ndarray) -> list[str]:
    names = _native.step_phases
    per_layer = phases[:-2].reshape(-1, len(names), 2)
    mean = per_layer.mean(axis=0)
    lines = [
        "  us per layer (prepared by one + shared by all): "
        + ", ".join(f"{name} {a:.1f}+{b:.1f}" for name, (a, b) in zip(names, mean, strict=True))
    ]
    lines.append(f"  head {phases[-1, 0]:.1f}+{phases[-1, 1]:.0f} us")
    return lines


def layerwise_ms(
    architecture: Architecture, store: ExpertStore, threads: int, steps: int, plain: bool
) -> float:
    """The engine's path layer by layer, with PyTorch's dense products or packed ones."""
    dense = None if plain else DenseRunner(DensePrecision.of("bf16"), choose("auto"))
    decoder = synthetic_decoder(architecture, "bf16", dense=dense)
    settings = EngineSettings(accelerator="none", threads=threads, max_sequences=1)
    runner = on_store(decoder, store, settings, Capacity(0, 1, 256))
    runner.machine.use_only_layerwise("asked for")
    taken = []
    for number in range(steps):
        began = perf_counter_ns()
        runner.step(ForwardPass([Piece(0, [number])]))
        taken.append((perf_counter_ns() - began) / 1e6)
    runner.close()
    return median(taken[2:])


def measure(options: argparse.Namespace, precision: str) -> Iterator[dict[str, object]]:
    """What is found, as it is found."""
    architecture = synthetic_architecture(options.model, options.layers)
    experts, dense = precision.split("/") if "/" in precision else (precision, precision)
    decoder = synthetic_decoder(
        architecture, "bf16", dense=DenseRunner(DensePrecision.of(dense), choose(options.kernel))
    )
    store = synthetic_store(decoder, experts, kernel_name=options.kernel)
    executor = store.kernel.executor(options.threads, strict=False)
    assert isinstance(executor, NativeExecutor), "native kernels"
    pool = executor.pool
    rate = stream_gb_s(pool, stream_bytes())
    kept = [(batch, kv_dtype) for batch in options.batches for kv_dtype in options.kv_dtypes]
    for batch, kv_dtype in kept * options.rounds:
        steps = Steps(decoder, store, pool, batch, options.context, kv_dtype)
        steps.run(3)
        taken, phases = steps.run(options.steps)
        found: dict[str, object] = {
            "layers": len(decoder.layers), "precision": precision, "batch": batch, "kv": kv_dtype,
            "threads": options.threads, "ms": taken, "tokens_per_s": batch * 1e3 / taken,
            "stream_gb_s": rate, "phases": phase_lines(phases),
        }  # fmt: skip
        if batch == 1:
            floor = token_bytes(decoder, store, options.context, kv_dtype) / rate / 1e6
            above = (taken - floor) * 1e3 / len(decoder.layers)
            found |= {"floor_ms": floor, "floor_ratio": taken / floor, "us_above": above}
        yield found
    if options.layerwise and precision == "bf16":
        for plain, words in ((True, "PyTorch"), (False, "packed")):
            taken = layerwise_ms(architecture, store, options.threads, options.steps, plain)
            yield {"precision": precision, "layerwise": words, "tokens_per_s": 1e3 / taken}


def lines(found: dict[str, Any]) -> list[str]:
    """For a reader."""
    if "layerwise" in found:
        words = f"layer by layer, dense products by {found['layerwise']}"
        return [f"{words}: {found['tokens_per_s']:.1f} tokens/s"]
    line = f"{found['precision']:10} KV {found['kv']:4} batch {found['batch']:2}: "
    line += f"{found['ms']:7.2f} ms a step, "
    line += f"{found['tokens_per_s']:6.1f} tokens/s"
    if "floor_ms" in found:
        line += f"; floor {found['floor_ms']:.2f} ms at {found['stream_gb_s']:.0f} GB/s, "
        line += f"{found['floor_ratio']:.2f} times it, {found['us_above']:.0f} us a layer above"
    return [line, *found["phases"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--precisions", default="bf16,int8,int4")
    parser.add_argument(
        "--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1]
    )
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--kv-dtypes", type=lambda text: text.split(","), default=["auto"])
    parser.add_argument("--rounds", type=int, default=1, help="of KV dtypes, in turns")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--layerwise", action="store_true")
    parser.add_argument("--json", action="store_true", help="a line for each result")
    options = parser.parse_args()
    with torch.inference_mode():
        for precision in options.precisions.split(","):
            for found in measure(options, precision):
                said = [json.dumps(found)] if options.json else lines(found)
                print("\n".join(said), flush=True)


if __name__ == "__main__":
    main()
