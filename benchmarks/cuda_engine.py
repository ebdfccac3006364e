"""The engine on a GPU: prompts and decoded tokens, whole, `python -m benchmarks.cuda_engine`.

Random weights of a real architecture, routing replayed from a synthetic trace. Per precision, cache
ratio and system: tokens per second of a prompt that is read in one step (three in turn) and of
decoded tokens (median), with what the conductor saw of a layer; then a batch. `--timeline` prints
two layers of a prompt and of a token, and what reading the spans costs. Needs CUDA."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from statistics import mean, median
from time import perf_counter

import numpy as np
import torch

from benchmarks.cuda_decode import random_decoder
from moesaic.core.offloading import GPU
from moesaic.core.report import ENGINE, Timeline, covered_ns
from moesaic.core.routing import LayerRouting
from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.replayed_routing import PROFILE_TOKENS, choose_routing
from moesaic.machines.captured.captured import Captured
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.captured.conductor import LayerTimes
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.policies.policy_set import PolicySet
from moesaic.workloads.steps import decode_steps, prefill_steps

SYSTEMS = {
    "learned-speed": ("best-split", "learned-speed:pool=global", "impact"),
    "two-speed": ("best-split", "two-speed", "impact"),
    "best-split": ("best-split", "lru", "none"),
    "hybrid": ("hybrid", "mrs", "impact"),
    "static-experts": ("static-experts", "pinned", "none"),
}
WARMUP = 24
Layers = list[LayerRouting]


class Model:
    """Weights, and routing for prompts and for decoding."""

    def __init__(self, name: str, layers: int, dtype: str, prompt: int, tokens: int, batch: int):
        self.decoder = random_decoder(synthetic_architecture(name, layers))
        self.spec = self.decoder.architecture.spec
        self.store = synthetic_store(self.decoder, dtype)
        self.prompts = self._routing(Case("prefill", prompt, 1), 3)
        self.single = self._routing(Case("decode", tokens + WARMUP, 1), tokens + WARMUP)
        self.batched = self._routing(Case("decode", tokens + WARMUP, batch), tokens + WARMUP)

    def _routing(self, case: Case, count: int) -> list[Layers]:
        source = choose_routing("synthetic", self.spec, [case], 1).of(case)
        assert source is not None
        if case.phase == "prefill":
            steps = prefill_steps(source, case.tokens, skip_tokens=PROFILE_TOKENS, wrap=True)
        else:
            steps = decode_steps(source, case.batch, skip_tokens=PROFILE_TOKENS, wrap=True)
        layers = range(self.spec.num_moe_layers)
        return [[step.layer(at) for at in layers] for step in islice(steps, count)]


@contextmanager
def running(
    model: Model, system: str, ratio: float, batch: int, step_tokens: int, timeline: Timeline
) -> Iterator[Runner]:
    schedule, cache, prefetch = SYSTEMS[system]
    settings = EngineSettings(
        policies=PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch),
        accelerator="cuda", max_sequences=batch, max_step_tokens=step_tokens,
    )  # fmt: skip
    slots = int(ratio * model.spec.num_expert_blocks)
    capacity = Capacity(slots, batch, max(step_tokens, 256) + 256)
    runner = on_store(model.decoder, model.store, settings, capacity, timeline=timeline)
    try:
        yield runner
    finally:
        runner.close()
        torch.cuda.empty_cache()


def read(runner: Runner, prompts: list[Layers]) -> list[float]:
    """Tokens per second of each."""
    rates = []
    for routing in prompts:
        tokens = len(routing[0].experts)
        numbers = np.random.default_rng(0).integers(1000, size=tokens).tolist()
        started = perf_counter()
        runner.step(ForwardPass([Piece(0, numbers)], replay=routing.__getitem__))
        rates.append(tokens / (perf_counter() - started))
        runner.free_slot(0)
    return rates


def layer_parts(runner: Runner) -> dict[str, float]:
    """Of the last step's layers by the conductor, microseconds: deciding, submitting, until the
    CPU's sum is there, from there to the next layer's routing; experts on the CPU and moved."""
    traced = runner.machine.trace()
    if not isinstance(traced, CapturedStep):
        return {}
    times = traced.times
    return {
        "plan": round(mean(t.planned - t.routed for t in times) / 1e3),
        "submit": round(mean(t.submitted - t.planned for t in times) / 1e3),
        "cpu": round(mean(t.summed - t.submitted for t in times) / 1e3),
        "rest": round(mean(b.routed - a.summed for a, b in pairwise(times)) / 1e3),
        "on_cpu": round(mean(t.on_cpu for t in times), 1),
        "moved": round(mean(t.transfers for t in times), 1),
        "ahead": round(mean(t.background for t in times), 1),
        "resident": round(mean(t.hits for t in times), 1),
    }


def write(runner: Runner, steps: list[Layers]) -> dict[str, float]:
    milliseconds: list[float] = []
    layers: list[LayerTimes] = []
    batch = len(steps[0][0].experts)
    for number, routing in enumerate(steps):
        inputs = [Piece(slot, [number % 1000]) for slot in range(batch)]
        runner.step(ForwardPass(inputs, replay=routing.__getitem__))
        assert runner.report is not None
        if number >= WARMUP:
            milliseconds.append(runner.report.latency_ns / 1e6)
            traced = runner.machine.trace()
            layers += traced.times if isinstance(traced, CapturedStep) else []
    return {
        "tok_s": round(1e3 * batch / median(milliseconds), 1),
        "cpu": round(mean(t.on_cpu for t in layers), 2),
        "moved": round(mean(t.transfers for t in layers), 2),
        "background": round(mean(t.background for t in layers), 2),
        "plan_us": round(mean(t.planned - t.routed for t in layers) / 1e3, 1),
        "cpu_us": round(mean(t.summed - t.submitted for t in layers) / 1e3, 1),
    }


def show(runner: Runner, timeline: Timeline, name: str) -> None:
    """Two layers of the last step in microseconds, and how much of the step is accounted for."""
    report, captured = runner.report, runner.machine.last
    assert report is not None
    assert isinstance(captured, Captured)
    middle = len(report.layers) // 2
    inside = [s for s in timeline.spans if report.start_ns <= s.start_ns < report.end_ns]
    lanes = [s for s in inside if s.lane in (GPU, ENGINE)]
    covered = covered_ns(lanes, report.start_ns, report.end_ns) / report.latency_ns
    clock = captured._spans.uncertainty_ns
    print(f"{name}: {report.latency_ns / 1e3:.0f} us, {covered:.1%} of it accounted for by GPU and "
          f"engine; the GPU's clock is known within {clock} ns")  # fmt: skip
    spans = sorted(
        (s for s in inside if s.layer in (middle, middle + 1)),
        key=lambda s: (s.start_ns, s.lane),
    )
    for span in spans:
        begin, end = ((t - spans[0].start_ns) / 1e3 for t in (span.start_ns, span.end_ns))
        experts = f" {list(span.computed)[:12]}" if span.computed else ""
        print(f"  {span.lane:6} layer {span.layer:2} {span.kind:10} {begin:9.1f} to {end:9.1f}"
              f"{experts}")  # fmt: skip


def measure(model: Model, dtype: str, ratio: float, arguments: argparse.Namespace) -> None:
    for system in arguments.systems.split(","):
        timeline = Timeline(enabled=False, engine=True)
        with running(model, system, ratio, 1, arguments.prompt, timeline) as runner:
            row = {"dtype": dtype, "cache": ratio, "system": system}
            if arguments.layerwise:
                runner.machine.use_only_layerwise("asked for")
            row["prompt_tok_s"] = [round(rate) for rate in read(runner, model.prompts)]
            row["prompt_us"] = layer_parts(runner)
            decodes = arguments.tokens > 0 and not arguments.layerwise
            decoded = write(runner, model.single) if decodes else {}
            print(json.dumps(row | decoded), flush=True)
            if arguments.timeline and decodes:
                timeline.enabled = True
                read(runner, model.prompts[:1])
                show(runner, timeline, "a prompt")
                print(json.dumps(row | {"with_timeline": write(runner, model.single)}))
                show(runner, timeline, "a token")
                timeline.enabled = False
        if arguments.batch > 1 and decodes:
            with running(model, system, ratio, arguments.batch, 512, timeline) as runner:
                row = {"dtype": dtype, "cache": ratio, "system": system, "batch": arguments.batch}
                print(json.dumps(row | write(runner, model.batched)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--dtypes", default="bf16,int4")
    parser.add_argument("--caches", default="0.25,0.5,0.75")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=48, help="0: only prompts")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--timeline", action="store_true", help="print two layers of a prompt")
    parser.add_argument("--layerwise", action="store_true", help="only prompts, driven from Python")
    arguments = parser.parse_args()
    for dtype in arguments.dtypes.split(","):
        sizes = arguments.prompt, arguments.tokens, max(arguments.batch, 1)
        model = Model(arguments.model, arguments.layers, dtype, *sizes)
        for ratio in map(float, arguments.caches.split(",")):
            measure(model, dtype, ratio, arguments)


if __name__ == "__main__":
    main()
