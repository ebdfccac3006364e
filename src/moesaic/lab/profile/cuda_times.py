"""What a machine with a GPU costs: decode steps of a small random model under systems that make one
thing the bottleneck each, and experts of many tokens by themselves.

- every expert in GPU memory: what a layer takes beyond attention is the GPU's experts;
- static experts, half of them there: the CPU ends last, and what it takes grows with its experts;
- every missing expert brought to the GPU: what a layer takes grows with the copies;
- Moesaic's own system: how long it decides, and what background copies cost the CPU;
- promotions only: the same of copies that read what the CPU has just computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter_ns
from typing import cast

import torch

from moesaic.core.offloading import CPU
from moesaic.core.units import NS_PER_US, slowed_by
from moesaic.engine.assemble import locked_store, on_store, placed_for, synthetic_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.expert_kernel import kernel_for
from moesaic.engine.make_machine import GPU_DEVICE
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.lab.profile.decode_samples import DecodeRun, line_by_count, measure_decode
from moesaic.lab.profile.link_times import NO_LINK_COSTS, LinkCosts, link_times, usual
from moesaic.lab.profile.profile_routing import ProfileRouting
from moesaic.machines.layerwise.gpu_layers import GpuLayers
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.belief import Belief
from moesaic.policies.policy_set import PolicySet

MODEL, LAYERS = "olmoe-1b-7b", 16  # all of its layers: one token's experts fill no cache
DTYPES = ("bf16", "int8", "int4")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STILL = PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none")
ON_DEMAND = PolicySet.of(schedule="gpu-only", cache="lru", prefetch="none", promote=False)
MOVING = PolicySet()
PROMOTING = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="none")
BATCH, _LENGTH = 8, 64
_MANY = 5  # experts of a call of the CPU from which the time of one more is derived
_CALLS = 9
_ENOUGH = 8  # layers with copies, to say what they cost the CPU
_CPU_LAST = 3  # experts on the CPU with which it ends after the GPU

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExpertCosts:
    """Microseconds of one precision's experts. `gpu_us` and `cpu_us`: one expert more in a call, by
    tokens; `launch_us` and `cpu_first_us`: what a layer's first expert adds; `demanded_us`: one
    expert that the layer waits for over the link, and `first_demanded_us` what the first of them
    adds; `copy_us`: one copy in a row of several. `link`: what link and CPU cost each other."""

    block_bytes: int
    gpu_us: dict[int, float]
    cpu_us: dict[int, float]
    launch_us: float
    cpu_first_us: float
    demanded_us: float
    copy_us: float
    cpu_slowed: int  # thousandths, beside copies
    first_demanded_us: float = 0.0
    link: LinkCosts = NO_LINK_COSTS


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Microseconds: `between_us` from the sum of a layer's experts to the next plan; `before_us`
    and `after_us` what a step takes before its first plan and after its last sum. Deciding:
    looking up a static placement, with one token, with several; the look-ahead likewise."""

    between_us: float
    before_us: float
    after_us: float
    static_plan_us: float
    plan_us: float
    batch_plan_us: float
    ahead_us: float
    batch_ahead_us: float
    active: float  # experts per layer of one token
    batch_active: float


@dataclass(frozen=True, slots=True)
class CudaTimes:
    model: str  # whose experts were measured
    experts: dict[str, ExpertCosts]  # by precision
    layer: LayerCosts
    why_layerwise: str | None  # why decode steps are not captured; None: they are
    threads: int


def measure_cuda(
    settings: EngineSettings,
    threads: int,
    progress: Progress = lambda words: None,
    device: str = GPU_DEVICE,
    layerwise: bool = False,
    layers: int | None = None,
) -> CudaTimes:
    """`layerwise`: drive decode steps from Python, also where they could be captured; `layers`: so
    many of the model's, where there is no memory for all."""
    architecture = synthetic_architecture(MODEL, layers or LAYERS)
    decoder = placed_for(synthetic_decoder(architecture, "bf16"), settings, device)
    bench = _Bench(decoder, settings, threads, device, layerwise)
    experts, layer = {}, None
    for dtype in DTYPES:
        progress(f"{dtype} experts on GPU and CPU, and their copies")
        store = bench.store(dtype)
        with locked_store(store, settings, device):
            still = bench.decode(store, STILL, 0.5)
            moving = bench.decode(store, MOVING, 0.25)
            if layer is None:
                layer = _layer_costs(still, moving, bench.decode(store, MOVING, 0.25, BATCH))
            experts[dtype] = bench.experts(store, still, moving)
    assert layer is not None, "some precision was measured"
    return CudaTimes(MODEL, experts, layer, bench.why_layerwise, threads)


class _Bench:
    def __init__(
        self, decoder: Decoder, settings: EngineSettings, threads: int, device: str, layerwise: bool
    ) -> None:
        self._decoder, self._device, self._layerwise = decoder, device, layerwise
        self._routing = ProfileRouting(decoder.architecture.spec)
        self._counts = self._routing.counts()
        self._settings = replace(settings, threads=threads, belief="measured")
        self.why_layerwise: str | None = None
        self._known: ExpertStore | None = None  # what the belief is about: probed once
        self._belief: Belief | None = None

    def store(self, dtype: str) -> ExpertStore:
        shape = self._decoder.architecture.expert_shape
        kernel = kernel_for(shape, dtype, self._decoder.dtype, self._settings)
        return synthetic_store(self._decoder, dtype, kernel_name=kernel)

    def decode(
        self, store: ExpertStore, policies: PolicySet, ratio: float, batch: int = 1
    ) -> DecodeRun:
        runner = self._runner(store, policies, ratio, BATCH)
        try:
            return measure_decode(runner, self._routing, batch)
        finally:
            runner.close()

    def experts(self, store: ExpertStore, still: DecodeRun, moving: DecodeRun) -> ExpertCosts:
        """`still`: a run in which half of the experts are in GPU memory, and stay; `moving`: one in
        which some are brought while the CPU computes others."""
        between = _between_ns(still)
        first, each = line_by_count(
            (sample.on_cpu, sample.experts_ns) for sample in still.layers if sample.on_cpu
        )
        resident = self.decode(store, STILL, 1.0)
        on_gpu = median(sample.whole_ns for sample in resident.layers) - between
        demanded = self.decode(store, ON_DEMAND, 0.5)
        waiting, moved = line_by_count(
            (sample.transfers, sample.whole_ns - between)
            for sample in demanded.layers
            if sample.transfers
        )
        top_k = self._decoder.architecture.spec.top_k
        runner = self._runner(store, STILL, 0.5, TOKENS[-1])
        try:
            layers = cast(GpuLayers, runner.machine.layerwise)
            with torch.inference_mode():
                gpu = {tokens: _gpu_us(layers, tokens, top_k) for tokens in TOKENS}
                cpu = {tokens: _cpu_us(layers, tokens) for tokens in TOKENS}
                copy, beside = layers.probe_transfer(), layers.probe_slowdown(CPU)
        finally:
            runner.close()
        inside = each / NS_PER_US / cpu[1]  # an expert inside a step over one by itself
        runs = (still.captured, moving.captured, self.decode(store, PROMOTING, 0.5).captured)
        link = link_times(runs, store.experts, first, each)
        slowed = round(usual(link.cpu_plain)) or max(_slowed(moving, first, each), beside)
        return ExpertCosts(
            block_bytes=store.kernel.block_bytes,
            gpu_us=gpu,
            cpu_us={tokens: us * inside for tokens, us in cpu.items()},
            launch_us=max(on_gpu / NS_PER_US - top_k * gpu[1], 0.0),
            cpu_first_us=first / NS_PER_US,
            demanded_us=max(moved, copy / 2) / NS_PER_US,  # less is noise
            copy_us=copy / NS_PER_US,
            cpu_slowed=slowed,
            first_demanded_us=max(waiting / NS_PER_US - gpu[1], 0.0),
            link=link.costs(),
        )

    def _runner(self, store: ExpertStore, policies: PolicySet, ratio: float, tokens: int) -> Runner:
        settings = replace(
            self._settings, policies=policies, max_step_tokens=tokens, max_sequences=BATCH
        )
        slots = round(ratio * store.layers * store.experts)
        capacity = Capacity(slots, BATCH, _LENGTH)
        known = self._belief if self._known is store else None
        runner = on_store(
            self._decoder, store, settings, capacity, self._counts, device=self._device,
            belief=known,
        )  # fmt: skip
        self._known, self._belief = store, runner.brain.belief
        if self._layerwise:
            runner.machine.use_only_layerwise("asked for")
        self.why_layerwise = runner.machine.why_layerwise
        return runner


def _between_ns(still: DecodeRun) -> float:
    """The time from a layer's sum to the next routing, of layers in which the CPU ended last."""
    last = min(_CPU_LAST, max(sample.on_cpu for sample in still.layers))
    return median(sample.between_ns for sample in still.layers if sample.on_cpu >= last)


def _slowed(moving: DecodeRun, first: float, each: float) -> int:
    """Thousandths that the CPU took longer in layers that experts were brought for meanwhile. They
    need not have come all the time, and what is brought in the background is not seen: the figure
    is a lower bound, and so is that of copies in a row (`contention.py`). For steps that are not
    captured, and leave no times of copies behind (`link_times.py`)."""
    found = [
        slowed_by(first + sample.on_cpu * each, sample.experts_ns)
        for sample in moving.layers
        if sample.on_cpu and sample.transfers
    ]
    return round(median(found)) if len(found) >= _ENOUGH else 0


def _layer_costs(still: DecodeRun, one: DecodeRun, many: DecodeRun) -> LayerCosts:
    return LayerCosts(
        between_us=_between_ns(still) / NS_PER_US,
        before_us=still.before_ns / NS_PER_US,
        after_us=still.after_ns / NS_PER_US,
        static_plan_us=still.plan_ns / NS_PER_US,
        plan_us=one.plan_ns / NS_PER_US,
        batch_plan_us=many.plan_ns / NS_PER_US,
        ahead_us=one.ahead_ns / NS_PER_US,
        batch_ahead_us=many.ahead_ns / NS_PER_US,
        active=one.active,
        batch_active=many.active,
    )


def _gpu_us(layers: GpuLayers, tokens: int, top_k: int) -> float:
    """The time of one token: one expert more in a launch of several, or, where that is within the
    noise, its share. Of several tokens: its share of a launch that fills the GPU."""
    if tokens > 1:
        count = min(layers.store.experts, max(TOKENS[-1] * top_k // tokens, 1))
        return layers.probe_launch(tokens, count) / count / NS_PER_US
    one, several = layers.probe_launch(tokens, 1), layers.probe_launch(tokens, top_k)
    share = several / top_k
    following = (several - one) / max(top_k - 1, 1)
    return (following if following > share / 4 else share) / NS_PER_US


def _cpu_us(layers: GpuLayers, tokens: int) -> float:
    """One expert more in a call, one call and the other in turns."""
    calls = [layers.cpu.repeated(layers.dtype, tokens, count) for count in (1, _MANY)]
    taken: list[list[int]] = [[], []]
    for attempt in range(_CALLS + 1):
        for call, noted in zip(calls, taken, strict=True):
            started = perf_counter_ns()
            call()
            if attempt:
                noted.append(perf_counter_ns() - started)
    one, several = (median(noted) for noted in taken)
    share = several / _MANY
    following = (several - one) / (_MANY - 1)
    return (following if share / 4 < following <= share else share) / NS_PER_US
