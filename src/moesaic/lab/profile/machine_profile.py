"""This machine, measured and described like any other: the input of `simulate`, `plan` and of a
brain's belief.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from moesaic.core.offloading import CPU, GPU
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware.host import Host
from moesaic.hardware.machine_reader import ATTENTION
from moesaic.hardware.machine_spec import (
    CpuSpec,
    GpuSpec,
    HostSpec,
    LinkSpec,
    MachineSpec,
    PlannerSpec,
)
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import REFERENCE, choose, kernel_description
from moesaic.lab.profile.engine_times import EngineTimes, measure_engine
from moesaic.lab.profile.expert_times import LARGE, TOKENS, ExpertTimes, experts_us, measure_experts
from moesaic.lab.profile.memory_times import LinkTimes, measure_link, stream_gb_s
from moesaic.machines.accelerators import has_slots
from moesaic.machines.real.copy_engine import LinkSpeed
from moesaic.machines.real.lane import InlineLane, Lane, ThreadLane
from moesaic.models.synthetic_model import random_expert

COMMAND = "moesaic profile"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """A device: its memory bandwidth and its times per expert."""

    threads: int
    stream_gb_s: float
    experts: ExpertTimes


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Everything measured. With accelerator `none`, `gpu` is the CPU itself: attention runs there,
    and nothing runs in parallel."""

    accelerator: str
    cores: int
    cpu: DeviceTimes
    gpu: DeviceTimes
    link: LinkTimes
    engine: EngineTimes
    tiles_from: dict[str, int]  # tokens of an expert from which kernels for many are faster


def measure(
    settings: EngineSettings, cores: int, progress: Progress = lambda words: None
) -> MachineProfile:
    """`progress` is called with what is about to be measured."""
    if not settings.capabilities.moves:
        torch.set_num_threads(cores)
        cpu = gpu = _device(InlineLane(), cores, "CPU", progress)
        link = _link(settings, InlineLane(), cores, progress)
        tiles_from = _crossovers(InlineLane(), cores, progress)
    else:
        threads = max(cores - 1, 1)
        accelerator, lane = ThreadLane("accelerator"), ThreadLane("cpu", threads)
        try:
            gpu = _device(accelerator, 1, "accelerator", progress)
            cpu = _device(lane, threads, "CPU", progress)
            link = _link(settings, lane, threads, progress)
            tiles_from = _crossovers(lane, threads, progress)
        finally:
            accelerator.close()
            lane.close()
    progress("the engine: steps of a small random model")
    engine = measure_engine(settings)
    cpu, gpu = _within(cpu, engine, CPU), _within(gpu, engine, GPU)
    return MachineProfile(settings.accelerator, cores, cpu, gpu, link, engine, tiles_from)


def _crossovers(lane: Lane, threads: int, progress: Progress) -> dict[str, int]:
    progress("kernels for few tokens against those for many")
    return measure_crossovers(lane, threads)


def _within(device: DeviceTimes, engine: EngineTimes, lane: str) -> DeviceTimes:
    """The bandwidth of experts inside the engine: with the other lane busy, from a large store."""
    taken = engine.expert_us.get(lane, engine.expert_us[CPU])
    left_us = max(taken - device.experts.overhead_us, taken / 2)
    size = make_kernel(LARGE, "bf16").block_bytes
    return replace(
        device, experts=replace(device.experts, bandwidth_gb_s=size / left_us * 1e6 / GB)
    )


def _device(lane: Lane, threads: int, name: str, progress: Progress) -> DeviceTimes:
    progress(f"the {name}: streaming reads, then experts of 1 to {TOKENS[-1]} tokens")
    return DeviceTimes(threads, stream_gb_s(lane), measure_experts(lane, threads))


def _link(settings: EngineSettings, cpu: Lane, threads: int, progress: Progress) -> LinkTimes:
    progress("the link: copies alone and overlapped with experts")
    kernel = make_kernel(LARGE, "bf16")
    executor = kernel.executor(threads)
    block = torch.zeros(kernel.block_bytes, dtype=torch.uint8)
    kernel.pack(random_expert(LARGE), block)
    hidden, out = torch.ones((1, LARGE.hidden), dtype=torch.bfloat16), torch.zeros(1, LARGE.hidden)

    def compute() -> None:
        with torch.inference_mode():
            for _ in range(4):
                executor.expert(block, hidden, None, 1.0, out)

    return measure_link(LinkSpeed(settings.link_gb_s, settings.link_latency_us), cpu, compute)


def contradictions(profile: MachineProfile) -> list[str]:
    """Figures that contradict each other: other programs must have disturbed the measurement."""
    found = []
    for name, device in (("CPU", profile.cpu), ("accelerator", profile.gpu)):
        for dtype, by_tokens in device.experts.by_tokens.items():
            counts = sorted(by_tokens)
            one, many = by_tokens[counts[0]], by_tokens[counts[-1]]
            if one > 1.5 * many:
                found.append(f"a {dtype} expert takes longer for 1 token than for many ({name})")
        inside, stream = device.experts.bandwidth_gb_s, device.stream_gb_s
        if inside < stream / 4:
            found.append(
                f"the {name} reads memory at {stream:.1f} GB/s, but experts at {inside:.1f}"
            )
    return list(dict.fromkeys(found))


def describe(profile: MachineProfile, host: Host, name: str) -> MachineSpec:
    """The machine description made of a profile."""
    accelerator = f"{profile.accelerator} accelerator" if has_slots(profile.accelerator) else None
    memory = host.memory_bytes / GB if host.memory_bytes else 8.0
    cpu_name = host.cpu or "CPU"
    gpu_name = f"{accelerator} (one core)" if accelerator else f"{cpu_name} {ATTENTION}"
    spec = MachineSpec(
        name=name,
        title=f"{cpu_name}, {host.cores} cores" + (f", {accelerator}" if accelerator else ""),
        description="Measured on this computer with the engine's own kernels.",
        notes=_notes(profile),
        gpu=GpuSpec(
            name=gpu_name,
            memory_gb=memory,
            memory_bandwidth_gb_s=profile.gpu.stream_gb_s,
            bandwidth_efficiency=_share(profile.gpu),
            matmul_tflops=profile.gpu.experts.tflops,
            matmul_efficiency=1.0,
            expert_overhead_us=profile.gpu.experts.overhead_us,
            layer_overhead_us=_layer_overhead_us(profile),
            expert_gb_s=_by_precision_gb_s(profile.gpu),
        ),
        cpu=CpuSpec(
            name=f"{cpu_name}, {profile.cpu.threads} threads",
            cores=profile.cpu.threads,
            memory_gb=memory,
            memory_bandwidth_gb_s=profile.cpu.stream_gb_s,
            bandwidth_efficiency=_share(profile.cpu),
            matmul_tflops=profile.cpu.experts.tflops,
            matmul_efficiency=1.0,
            expert_overhead_us=profile.cpu.experts.overhead_us,
            first_expert_us=profile.cpu.experts.first_us,
            expert_gb_s=_by_precision_gb_s(profile.cpu),
            tiles_from=profile.tiles_from,
        ),
        pcie=LinkSpec(profile.link.bandwidth_gb_s, profile.link.latency_us),
        planner=PlannerSpec(
            profile.engine.decision_us,
            profile.engine.per_expert_us,
            profile.engine.lookahead_us,
            profile.engine.lookahead_per_token_us,
        ),
        sources={},
        host=_host(profile),
    )
    return _with_sources(spec)


def _by_precision_gb_s(device: DeviceTimes) -> dict[str, float]:
    """Bandwidth of the other precisions, scaled by the ratio of bf16's bandwidth inside the engine
    to that outside."""
    experts = device.experts
    reading = {  # at least half of an expert's time, however noisy the overhead is
        dtype: max(by_tokens[1] - experts.overhead_us, by_tokens[1] / 2)
        for dtype, by_tokens in experts.by_tokens.items()
    }
    sizes = {dtype: make_kernel(LARGE, dtype).block_bytes for dtype in reading}
    inside = sizes["bf16"] / (experts.bandwidth_gb_s * GB) * 1e6
    slower = max(inside / reading.pop("bf16"), 1.0)
    return {dtype: sizes[dtype] / (us * slower) * 1e6 / GB for dtype, us in reading.items()}


def _layer_overhead_us(profile: MachineProfile) -> float:
    """What attention takes beyond reading its weights."""
    reading = profile.engine.attention_bytes / (profile.gpu.experts.bandwidth_gb_s * GB) * 1e6
    return max(profile.engine.attention_us - reading, 0.0)


def _host(profile: MachineProfile) -> HostSpec:
    """Cores are the shared resource: the emulated accelerator has one, the CPU's experts have the
    others, and copies and planning need some, too."""
    cores = profile.cores
    return HostSpec(
        gpu_share=profile.gpu.threads / cores,
        cpu_share=profile.cpu.threads / cores,
        link_share=profile.link.copying / cores,
        planner_share=1 / cores,
    )


def _share(device: DeviceTimes) -> float:
    return min(device.experts.bandwidth_gb_s / device.stream_gb_s, 1.0)


def _notes(profile: MachineProfile) -> tuple[str, ...]:
    link, odd = profile.link, contradictions(profile)
    disturbed = (f"Disturbed, measure again: {'; '.join(odd)}.",) if odd else ()
    return (
        *disturbed,
        f"Copies overlapped with CPU experts: {link.overlapped_gb_s:.1f} GB/s; those experts "
        f"then take {link.cpu_slowdown:.2f} times as long.",
        f"CPU experts by {kernel_description(choose())}.",
    )


def _with_sources(spec: MachineSpec) -> MachineSpec:
    return replace(spec, sources=dict.fromkeys(spec.values(), f"measured by `{COMMAND}`"))


# From how many tokens on products for many are faster than those for few, by precision: matrix
# tiles than vectors or, where there are none, bytes than 16-bit codes beside int4 weights.

CROSSOVER_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_IN_TILES = ("bf16", "int8", "int4")
_IN_VECTORS = ("int4",)
_NEVER, _ALWAYS = 0, 1


def measure_crossovers(lane: Lane, threads: int) -> dict[str, int]:
    """Nothing without native kernels."""
    name = choose()
    if name == REFERENCE:
        return {}
    found = {}
    for dtype in _IN_TILES if name == "amx" else _IN_VECTORS:
        few, many = (make_kernel(LARGE, dtype, name, mode) for mode in (_NEVER, _ALWAYS))
        taken = {
            tokens: [experts_us(lane, threads, kernel, tokens) for kernel in (few, many)]
            for tokens in CROSSOVER_TOKENS
        }
        found[dtype] = first_better(taken)
    return found


def first_better(taken: dict[int, list[float]]) -> int:
    """The smallest count from which products for many (second) never lose again; one more than
    measured where they always do."""
    crossover = max(taken) + 1
    for tokens in sorted(taken, reverse=True):
        few, many = taken[tokens]
        if many > few:
            break
        crossover = tokens
    return crossover
