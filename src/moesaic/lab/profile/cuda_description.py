"""A machine with a GPU as `moesaic profile` describes it: measured times as the numbers that the
simulator, the planner of memory and a brain's belief are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from moesaic.core.dtypes import weight_bytes
from moesaic.core.offloading import CPU, PCIE
from moesaic.core.units import GB
from moesaic.hardware.host import Host
from moesaic.hardware.identity import cpu_identity, gpu_identity
from moesaic.hardware.machine_reader import CUDA
from moesaic.hardware.machine_spec import (
    CpuSpec,
    GpuSpec,
    LinkSpec,
    LinkUseSpec,
    MachineSpec,
    PlannerSpec,
    ResourceSpec,
)
from moesaic.hardware.nvidia import NvidiaDriver
from moesaic.hardware.parts import PRIORITY
from moesaic.lab.profile.cuda_times import BATCH, CudaTimes, ExpertCosts
from moesaic.lab.profile.machine_profile import COMMAND
from moesaic.lab.profile.timing import line_through
from moesaic.machines.real.stream_copier import BACKGROUND_COPIES
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.configs.synthetic_architecture import synthetic_architecture

COMMON = "bf16"
_LEAST_TFLOPS = 1e-4  # a description can state; what is measured below is disturbed
_FEW = "int4"  # its blocks are short: with bf16's they tell latency from bandwidth


@dataclass(frozen=True, slots=True)
class CudaProfile:
    """Everything measured: times inside the engine, and what memories reach at best."""

    times: CudaTimes
    gpu_read_gb_s: float
    cpu_read_gb_s: float
    gpu_memory_bytes: int


def describe_cuda(
    profile: CudaProfile, host: Host, driver: NvidiaDriver, kernel: str, name: str = CUDA
) -> MachineSpec:
    """`kernel`: what computes the CPU's experts."""
    times, model = profile.times, synthetic_architecture(profile.times.model).spec
    gpu, cpu = _Rates.of(times, model, "gpu_us"), _Rates.of(times, model, "cpu_us")
    link, spec_gpu = _link(times, model), _gpu(profile, model, gpu, driver)
    common, cpu_peak = times.experts[COMMON], _peak(profile.cpu_read_gb_s, cpu.gb_s[COMMON])
    spec = MachineSpec(
        name=name,
        title=f"{gpu_identity(driver)} and {host.cpu or 'CPU'}, {times.threads} threads",
        description="Measured on this computer inside the engine, with its own kernels.",
        notes=_notes(times),
        gpu=spec_gpu,
        cpu=CpuSpec(
            name=cpu_identity(host, times.threads, kernel),
            cores=times.threads,
            memory_gb=host.memory_bytes / GB if host.memory_bytes else 8.0,
            memory_bandwidth_gb_s=cpu_peak,
            bandwidth_efficiency=cpu.gb_s[COMMON] / cpu_peak,
            matmul_tflops=cpu.tflops,
            matmul_efficiency=1.0,
            expert_overhead_us=0.0,
            first_expert_us=common.cpu_first_us,
            expert_gb_s=cpu.gb_s,
            expert_factor=cpu.factors,
        ),
        pcie=link,
        planner=_planner(times),
        sources={},
        resources=_shared_memory(cpu.gb_s[COMMON], link, common.cpu_slowed),
        pcie_use=_link_use(times),
    )
    return replace(spec, sources=dict.fromkeys(spec.values(), f"measured by `{COMMAND}`"))


@dataclass(frozen=True, slots=True)
class _Rates:
    """A device's experts as rates, and what each token count takes over the roofline they make."""

    gb_s: dict[str, float]
    tflops: dict[str, float]
    factors: dict[str, float]

    @classmethod
    def of(cls, times: CudaTimes, model: ModelSpec, field: str) -> _Rates:
        gb_s, tflops, factors = {}, {}, {}
        for dtype, costs in times.experts.items():
            taken: Mapping[int, float] = getattr(costs, field)
            flops = 2.0 * model.expert_params
            gb_s[dtype] = model.expert_bytes(dtype) / taken[1] * 1e6 / GB
            best = max(flops * tokens / us / 1e6 for tokens, us in taken.items())
            tflops[dtype] = max(best, _LEAST_TFLOPS)
            for tokens, us in taken.items():
                multiplying = flops * tokens / (tflops[dtype] * 1e6)
                factors[f"{dtype}-{tokens}"] = us / max(taken[1], multiplying)
        return cls(gb_s, tflops, factors)


def _gpu(profile: CudaProfile, model: ModelSpec, rates: _Rates, driver: NvidiaDriver) -> GpuSpec:
    costs, layer = profile.times.experts, profile.times.layer
    gb_s = rates.gb_s[COMMON]
    peak = _peak(profile.gpu_read_gb_s, gb_s)
    attention = weight_bytes(model.attention_params + model.router_params, "bf16")
    head = weight_bytes(model.head_params, "bf16")
    outside = layer.before_us - layer.between_us + layer.after_us - head / (gb_s * GB) * 1e6
    fixed = {"launch": costs[COMMON].launch_us, "step": outside}
    return GpuSpec(
        name=gpu_identity(driver),
        memory_gb=profile.gpu_memory_bytes / GB,
        memory_bandwidth_gb_s=peak,
        bandwidth_efficiency=gb_s / peak,
        matmul_tflops=rates.tflops,
        matmul_efficiency=1.0,
        expert_overhead_us=0.0,
        layer_overhead_us=max(layer.between_us - attention / (gb_s * GB) * 1e6, 0.0),
        expert_gb_s=rates.gb_s,
        expert_factor=rates.factors,
        once_us={name: us for name, us in fixed.items() if us > 0},
    )


def _peak(read_gb_s: float, expert_gb_s: float) -> float:
    """The peak of a memory: streaming reads, within 1 and 100 times the rate of experts."""
    return min(max(read_gb_s, expert_gb_s), 100 * expert_gb_s)


def _link(times: CudaTimes, model: ModelSpec) -> LinkSpec:
    """What a layer waits for; the same bytes in a row of background copies take about as long."""
    both = ((dtype, times.experts[dtype]) for dtype in (_FEW, COMMON))
    points = [(model.expert_bytes(dtype), each.demanded_us) for dtype, each in both]
    latency, us_per_byte = line_through(points)
    return LinkSpec(1e6 / us_per_byte / GB, latency)


def _planner(times: CudaTimes) -> PlannerSpec:
    """Beyond looking up a static placement, which is a part of every layer."""
    layer = times.layer
    deciding = max(layer.plan_us - layer.static_plan_us, 0.0)
    more = (layer.batch_plan_us - layer.plan_us) / max(layer.batch_active - layer.active, 1.0)
    per_expert = min(max(more, 0.0), deciding / max(layer.active, 1.0))
    ahead = max(layer.batch_ahead_us - layer.ahead_us, 0.0) / (BATCH - 1)
    return PlannerSpec(deciding - per_expert * layer.active, per_expert, layer.ahead_us, ahead)


def _shared_memory(cpu_gb_s: float, link: LinkSpec, slowed: int) -> dict[str, ResourceSpec]:
    """Copies are served first; the CPU has what they leave. Where it is not slowed down, there is
    enough for both."""
    if not slowed:
        return {}
    copying = link.bandwidth_gb_s
    whole = copying + cpu_gb_s / (1 + slowed / 1000)
    return {"dram": ResourceSpec(PRIORITY, whole, {CPU: cpu_gb_s, PCIE: copying}, (PCIE,))}


def _link_use(times: CudaTimes) -> LinkUseSpec:
    """What does not depend on the precision is the median of those that it was seen with."""
    costs = times.experts
    links = [each.link for each in costs.values()]
    return LinkUseSpec(
        demand_us=median(each.first_demanded_us for each in costs.values()),
        submitted_copies=BACKGROUND_COPIES,
        busy_handover_us=_seen_us(each.busy_handover_us for each in links),
        cached_handover_us=_seen_us(each.cached_handover_us for each in links),
        cached_factor=median(each.cached_factor for each in links),
        cached_cpu_factor={
            dtype: 1 + each.link.cpu_cached / 1000
            for dtype, each in costs.items()
            if each.link.cpu_cached
        },
    )


def _seen_us(values: Iterable[float]) -> float:
    seen = [us for us in values if us > 0]
    return median(seen) if seen else 0.0


def _notes(times: CudaTimes) -> tuple[str, ...]:
    because = times.why_layerwise
    how = "captured as CUDA graphs" if because is None else f"driven from Python ({because})"
    slowed = {dtype: costs.cpu_slowed / 1000 for dtype, costs in times.experts.items()}
    found = ", ".join(f"{1 + by:.2f} ({dtype})" for dtype, by in slowed.items())
    rates = ", ".join(f"{_copy_gb_s(c):.1f} GB/s ({d})" for d, c in times.experts.items())
    return (
        f"Decode steps were {how}.",
        f"Beside copies, the CPU's experts take so many times as long: {found}.",
        f"Copies in a row, in the background: {rates}.",
    )


def _copy_gb_s(costs: ExpertCosts) -> float:
    return costs.block_bytes / costs.copy_us * 1e6 / GB
