"""Whole tokens decoded by GPU and CPU: `python -m benchmarks.cuda_decode` (needs CUDA).

Random weights of a real architecture, routing replayed from a trace. Prints tokens per second per
system and cache ratio, where the time of a layer goes, and the floor: bytes that CPU, link and GPU
have to read at the rates measured here, best split. `--systems learned-speed,no-read-ahead --rounds
5` says what reading ahead into the CPU's caches gains.

`--forecasts` says what prefetching sees of the next layers: what the brain has learned to predict,
what a trace's next layers will choose (`true`: the most that forecasts can bring), or, with the
model's own random routers instead of a trace, what their gates say in the graph (`gates`)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from moesaic.core.units import slowed_by
from moesaic.engine.assemble import synthetic_store
from moesaic.kernels.gpu.driver import current_context
from moesaic.kernels.gpu.experts import GpuExperts
from moesaic.kernels.gpu.table import write_table
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.replayed_routing import PROFILE_TOKENS, choose_routing
from moesaic.machines.captured.conductor import (
    Conductor,
    Copying,
    ExpertMemory,
    ForecastSource,
    LayerTimes,
)
from moesaic.machines.captured.cpu_runner import CpuRunner, LayerCall
from moesaic.machines.captured.decode_step import DecodeStep
from moesaic.machines.captured.mailbox import Mailbox, MailboxShape
from moesaic.machines.captured.step_parts import Replayed, StepParts
from moesaic.machines.real.pinned import Pinned
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.moe_names import plain_names
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.decoder_builder import DecoderBuilder
from moesaic.models.placed import placed_decoder
from moesaic.policies.belief import Belief
from moesaic.policies.brain.c_functions import native_brain
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape
from moesaic.workloads.step_routing import StepRouting
from moesaic.workloads.steps import decode_steps

WARMUP = 24
SYSTEMS = {
    "hybrid": ("hybrid", "mrs", "impact"),
    "hybrid-noprefetch": ("hybrid", "mrs", "none"),
    "best-split": ("best-split", "lru", "none"),
    "learned-speed": ("best-split", "learned-speed:pool=global", "impact"),
    "no-read-ahead": ("best-split", "learned-speed:pool=global", "impact:read_ahead=0"),
    "two-speed": ("best-split", "two-speed", "impact"),
    "static-experts": ("static-experts", "pinned", "none"),
    "gpu-only": ("gpu-only", "lru", "none"),
}


class GpuRandom:
    """Weights made up where they are used: the CPU takes half a minute for them."""

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        like = {"dtype": dtype or torch.bfloat16, "device": "cuda"}
        if len(shape) == 1:
            return torch.ones(shape, **like)
        return torch.randn(shape, **like) * shape[-1] ** -0.5

    def empty(self, values: int) -> torch.Tensor:
        return torch.empty(values, dtype=torch.bfloat16, device="cuda")


def random_decoder(architecture: Architecture) -> Decoder:
    """Laid out as an engine's."""
    decoder = DecoderBuilder(architecture, GpuRandom(), plain_names, "reference").build()
    return placed_decoder(decoder, "cuda")


class Machine:
    """What all systems share: weights, pinned experts, CPU workers, measured costs."""

    def __init__(self, model: str, layers: int, dtype: str, threads: int, length: int) -> None:
        started = perf_counter()
        decoder = random_decoder(synthetic_architecture(model, layers))
        self.decoder, self.dtype, self.threads = decoder, dtype, threads
        self.spec = decoder.architecture.spec
        self.store = synthetic_store(decoder, dtype)
        first = self.store.block(0, 0)
        self.pinned = Pinned(first.data_ptr(), self.store.bytes)
        self.size = self.store.kernel.block_bytes
        shape = decoder.architecture.expert_shape
        self.cpu = CpuRunner(shape, dtype, threads, 4)
        self.cache = BlockCache(self.spec, 1, length, torch.bfloat16, "cuda")
        self.loading_s = perf_counter() - started
        self.belief = self._measured()

    def _gpu_us(self, count: int, host: bool) -> float:
        """One token's experts in one launch, over different ones each time."""
        spec = self.spec
        kernel = GpuExperts(
            self.decoder.architecture.expert_shape, self.dtype, 1, spec.top_k, spec.num_experts
        )
        slots = torch.zeros(64, self.size, dtype=torch.uint8, device="cuda")
        x = torch.randn(1, spec.hidden_size, device="cuda").to(torch.bfloat16)
        tables = []
        for launch in range(8 if host else 64 // count):
            blocks = [
                self.store.block(0, (launch * count + i) % spec.num_experts).data_ptr() if host
                else slots[launch * count + i].data_ptr()
                for i in range(count)
            ]  # fmt: skip
            fills = [slots[i].data_ptr() if host else 0 for i in range(count)]
            table = torch.zeros(kernel.table_shape.words, dtype=torch.int64)
            rows = [[i] for i in range(count)]
            write_table(table.numpy(), kernel.table_shape, blocks, fills, rows)
            tables.append(table.cuda())
        graph = torch.cuda.CUDAGraph()
        kernel.launch(tables[0], x)
        with torch.cuda.graph(graph):
            for table in tables:
                kernel.launch(table, x)
        times = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1000 / len(tables))
        return float(min(times))

    def _cpu_us(self, count: int, copying: bool = False) -> float:
        """Of so many experts on the workers, alone or while the link copies."""
        hidden = torch.randn(1, self.spec.hidden_size).to(torch.bfloat16)
        out = torch.zeros(1, self.spec.hidden_size)
        weights, times = torch.full((1, count), 0.1), []
        slot = torch.zeros(self.size, dtype=torch.uint8, device="cuda")
        for turn in range(40):
            ids = np.array([(turn * count + i) % self.store.experts for i in range(count)])
            layer = self.store.layer(turn % self.store.layers)
            chosen, blocks = ids.astype(np.int32), layer.addresses[ids]
            call = LayerCall(
                hidden.data_ptr(), 1, self.spec.hidden_size, 1, count, self.store.experts,
                ids.ctypes.data, weights.data_ptr(), count, chosen.ctypes.data,
                blocks.ctypes.data, out.data_ptr(), 0, 0,
            )  # fmt: skip
            if copying:
                for i in range(4 * count):
                    slot.copy_(self.store.block(turn % self.store.layers, i), non_blocking=True)
            started = perf_counter()
            self.cpu.run(call)
            times.append((perf_counter() - started) * 1e6)
            if copying:
                torch.cuda.synchronize()
        return median(times)

    def _measured(self) -> Belief:
        top_k = self.spec.top_k
        gpu, link = self._gpu_us(top_k, False) / top_k, self._gpu_us(1, True)
        half = max(top_k // 2, 2)
        one, some = self._cpu_us(1), self._cpu_us(half)
        following = max((some - one) / (half - 1), 1.0)
        beside = self._cpu_us(half, copying=True)
        self.rates = {
            "gpu": gpu, "link": link, "cpu_first": one, "cpu": following,
            "cpu_beside_copies": (beside - one) / (half - 1),
        }  # fmt: skip
        first = int(max(one - following, 0) * 1000)
        slower = int(self.rates["cpu_beside_copies"] * 1000)
        ns = {1: int(gpu * 1000)}, int(link * 1000)
        self.contended = Belief.from_points(ns[0], {1: slower}, first, ns[1], 2)
        alone = int(following * 1000)
        belief = Belief.from_points(ns[0], {1: alone}, first, ns[1], 2)
        return replace(belief, cpu_slowed=slowed_by(alone, slower))


class Run:
    """One system with one cache ratio."""

    def __init__(
        self, machine: Machine, policies: PolicySet, ratio: float, steps: list[StepRouting],
        forecasts: str = "predicted", own_routers: bool = False, stamped: bool = True,
    ) -> None:  # fmt: skip
        spec = machine.spec
        self.machine, self.steps = machine, steps
        slots = int(ratio * spec.num_moe_layers * spec.num_experts)
        shape = Shape(spec.num_moe_layers, spec.num_experts, spec.top_k)
        composition = Composition(policies, shape, slots)
        counts = np.zeros((shape.layers, shape.experts), dtype=np.int64)
        for step in steps[:WARMUP]:
            for layer in range(shape.layers):
                counts[layer] += np.bincount(step.experts[layer].ravel(), minlength=shape.experts)
        ranks = steps[0].ranked.shape[2]
        self.brain = composition.brain(machine.belief, counts=counts)
        depth = 0 if forecasts == "predicted" else self.brain.forecasts_used
        self.forecast_source = ForecastSource(depth, recorded=forecasts == "true")
        self.mailbox = Mailbox(
            MailboxShape(
                1, spec.hidden_size, spec.top_k, spec.num_experts, ranks, shape.layers, depth
            )
        )
        slab = torch.zeros(max(slots, 1), machine.size, dtype=torch.uint8, device="cuda")
        memory = ExpertMemory(
            machine.pinned.address, slab.data_ptr(), slots, machine.size,
            owners=(machine.pinned, slab),
        )  # fmt: skip
        self.copy_stream = torch.cuda.Stream()
        copying = Copying(current_context(), self.copy_stream.cuda_stream)
        self.conductor = Conductor(
            native_brain(self.brain, 1, ranks),
            self.mailbox,
            memory,
            machine.cpu.addresses(),
            copying,
        )
        experts = composition.placement(counts)
        indices = [e.layer * shape.experts + e.expert for e in experts]
        for expert, slot in zip(experts, self.conductor.place(indices), strict=True):
            slab[slot].copy_(machine.store.block(*expert), non_blocking=True)
        self.slab = slab
        device = {"device": "cuda"}
        self.all = Replayed(
            torch.from_numpy(np.stack([s.ranked for s in steps])).to(**device),
            torch.from_numpy(np.stack([s.scores for s in steps])).float().to(**device),
            torch.from_numpy(np.stack([s.weights for s in steps])).float().to(**device),
        )
        now = Replayed(*(part[0].clone() for part in self.all))
        self.now = now
        gates = machine.decoder.gate_bank() if forecasts == "gates" and depth else None
        parts = StepParts(
            machine.decoder, machine.cache, self.mailbox, machine.dtype, gates=gates,
            stamped=stamped,
        )  # fmt: skip
        self.step = DecodeStep(parts, 1, None if own_routers else now)
        self.step.prepare()
        self.done = torch.cuda.Event(blocking=True)
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            self._once(0, self.step.launch)  # compiles everything
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.step.launch()

    def _once(self, number: int, launch: object) -> None:
        for part, whole in zip(self.now, self.all, strict=True):
            part.copy_(whole[number], non_blocking=True)
        position = number % (self.machine.cache.max_length - 1)
        self.step.inputs.write([number % 1000], [0], [position])
        if self.forecast_source.recorded:
            self._tell(number)
        self.conductor.begin(number, 1, forecast_source=self.forecast_source)
        launch()  # type: ignore[operator]
        self.conductor.finish()
        self.done.record()
        self.done.synchronize()

    def _tell(self, number: int) -> None:
        """What the next layers of the trace's step will choose."""
        step, top_k = self.steps[number], self.machine.spec.top_k
        layers = len(step.ranked)
        for d in range(self.forecast_source.layers):
            for part, values in (("ids", step.ranked), ("scores", step.scores)):
                there = self.mailbox[f"forecast_{part}"].numpy()
                there[: layers - 1 - d, d, :1] = values[d + 1 :, :, :top_k]

    def measure(self) -> dict[str, Any]:
        seconds, layers = [], []
        with torch.cuda.stream(self.stream):
            for number in range(1, len(self.steps)):
                started = perf_counter()
                self._once(number, self.graph.replay)
                if number >= WARMUP:
                    seconds.append(perf_counter() - started)
                    layers += self.conductor.times
        return self._row(seconds, layers)

    def _row(self, seconds: list[float], layers: list[LayerTimes]) -> dict[str, Any]:
        def mean(values: Sequence[float]) -> float:
            return round(float(np.mean(values)), 2)

        active = sum(t.on_gpu + t.on_cpu for t in layers)
        return {
            "tok_s": round(1 / median(seconds), 1), "ms": round(median(seconds) * 1e3, 3),
            "hit": round(sum(t.hits for t in layers) / active, 3),
            "cpu": mean([t.on_cpu for t in layers]),
            "moved": mean([t.transfers for t in layers]),
            "background": mean([t.background for t in layers]),
            "plan_us": mean([(t.planned - t.routed) / 1e3 for t in layers]),
            "submit_us": mean([(t.submitted - t.planned) / 1e3 for t in layers]),
            "ahead_us": mean([(t.looked_ahead - t.submitted) / 1e3 for t in layers]),
            "cpu_us": mean([(t.summed - t.submitted) / 1e3 for t in layers]),
            "gap_us": mean(
                [(b.routed - a.summed) / 1e3 for a, b in pairwise(layers) if b.routed > a.summed][
                    : 20 * self.machine.spec.num_moe_layers
                ]
            ),
            "forecast_counts": self.conductor.forecast_counts,
            "read_ahead_counts": self.conductor.read_ahead_counts,
            "trust": [round(share, 2) for share in self.brain.forecast_accuracy],
            "finite": bool(torch.isfinite(self.step.logits).all()),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--dtypes", default="bf16,int4")
    parser.add_argument("--caches", default="0.25,0.5,0.75")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=1, help="of all systems in turn")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--contended", action="store_true", help="believe CPU costs beside copies")
    parser.add_argument("--forecasts", default="predicted", help="predicted, true, gates")
    parser.add_argument("--own-routers", action="store_true", help="replay no trace")
    parser.add_argument("--no-stamps", action="store_true", help="kernels leave no times")
    arguments = parser.parse_args()
    torch.cuda.init()
    for dtype in arguments.dtypes.split(","):
        machine = Machine(arguments.model, arguments.layers, dtype, arguments.threads, 512)
        if arguments.contended:
            machine.belief = machine.contended
        print(dtype, f"loaded in {machine.loading_s:.1f} s", machine.rates, flush=True)
        case = Case("decode", arguments.tokens + WARMUP, 1)
        routing = choose_routing("synthetic", machine.spec, [case], 1)
        source = routing.of(case)
        assert source is not None
        every = decode_steps(source, 1, skip_tokens=PROFILE_TOKENS, wrap=True)
        steps = [next(every) for _ in range(arguments.tokens + WARMUP)]
        for ratio in map(float, arguments.caches.split(",")):
            for name in arguments.systems.split(",") * arguments.rounds:
                schedule, cache, prefetch = SYSTEMS[name]
                policies = PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)
                for forecasts in arguments.forecasts.split(","):
                    own = arguments.own_routers or forecasts == "gates"
                    stamped = not arguments.no_stamps
                    run = Run(machine, policies, ratio, steps, forecasts, own, stamped)
                    row = {"dtype": dtype, "cache": ratio, "system": name, "sees": forecasts}
                    print(json.dumps(row | run.measure()), flush=True)
                    del run
                    torch.cuda.empty_cache()
        machine.pinned.close()


if __name__ == "__main__":
    main()
