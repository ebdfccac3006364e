"""One row of a bench: a test under one set of policies. docs/metrics.md defines every field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import stdev
from typing import Any, Protocol

from moesaic.core.dtypes import BITS_PER_WEIGHT, weight_bytes
from moesaic.core.report import StepReport
from moesaic.core.step import Step
from moesaic.core.units import GB, NS_PER_MS
from moesaic.engine.dense_weights import packed_dtype
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gate_stats import GateStats
from moesaic.engine.memory.memory_plan import MemoryPlan
from moesaic.hardware.machine_spec import CpuSpec, GpuSpec, LinkSpec, MachineSpec, PlannerSpec
from moesaic.lab.bench.bench_steps import CaseRuns
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.rates import MeasuredRates, Rates
from moesaic.lab.simulate.floor import Floor
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.attended import Attended, attended
from moesaic.model_info.dense_bytes import DensePrecision, packed_dense_bytes
from moesaic.model_info.kv_dtypes import AS_COMPUTED, kv_token_bytes
from moesaic.model_info.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """A set of policies with its memory plan, known to fit."""

    spec: ModelSpec
    system: str
    settings: EngineSettings
    plan: MemoryPlan

    def policies(self, phase: str) -> dict[str, Any] | None:
        """None without an accelerator: then nothing is decided."""
        if not self.settings.capabilities.moves:
            return None
        return self.settings.policies.as_dict(phase)


@dataclass(frozen=True, slots=True)
class BenchRow:
    config: BenchConfig
    case: Case
    runs: CaseRuns
    load_s: float
    peak_bytes: int | None  # of the process, up to here

    @property
    def tokens(self) -> int:
        return self.case.all_tokens * len(self.runs.seconds)

    @property
    def seconds(self) -> float:
        return sum(self.runs.seconds)

    @property
    def stdev(self) -> float | None:
        """The standard deviation of tokens per second over the repetitions; None for a single
        one."""
        rates = [self.case.all_tokens / seconds for seconds in self.runs.seconds]
        return stdev(rates) if len(rates) > 1 else None

    @property
    def overhead_us(self) -> float:
        """The engine's own time per routed layer, the median step's."""
        measured = self.runs.measured
        return measured.overhead_us(len(measured.reports[0].layers))

    @property
    def router_us(self) -> float:
        """The time of one routed layer's norm and router in the median step."""
        measured = self.runs.measured
        return measured.router_us(len(measured.reports[0].layers))

    def floor_s(self, rates: MeasuredRates) -> float:
        """The floor of all repetitions together."""
        spec, plan, runs = self.config.spec, self.config.plan, self.runs
        packed = packed_dtype(self.config.settings, plan.dtype)
        kept = self.config.settings.kv_dtype
        floor = make_floor(rates, spec, plan.dtype, plan.expert_dtype, packed, kept)
        last = spec.expert_bytes(plan.expert_dtype)  # it may still be under way
        arrived = max(runs.measured.bytes_moved - last, 0)
        return run_floor_s(floor, runs.steps, runs.measured.reports, arrived)

    def as_dict(self, rates: MeasuredRates, gate: GateStats | None = None) -> dict[str, Any]:
        """The row as `bench --json` prints it; `gate` adds what other rows say (gate_gain.py)."""
        config, measured, plan = self.config, self.runs.measured, self.config.plan
        times, floor_s = measured.times, self.floor_s(rates)
        return {
            "test": self.case.name,
            "system": config.system,
            "tokens_per_s": self.tokens / self.seconds,
            "ms_per_token": 1e3 * self.seconds / self.tokens,
            "stdev": self.stdev,
            "repetitions": len(self.runs.seconds),
            "tokens": self.case.all_tokens,
            "hit_rate": measured.hit_rate if plan.capacity.slots else None,
            "bytes": measured.bytes_moved,
            "floor_ms": 1e3 * floor_s / self.tokens,
            "floor_ratio": self.seconds / floor_s,
            "policies": config.policies(self.case.phase),
            "dtype": plan.dtype,
            "expert_dtype": plan.expert_dtype,
            "dense_dtype": plan.dense_dtype,
            "accelerator": config.settings.accelerator,
            "cache_ratio": plan.cache_ratio,
            "slots": plan.capacity.slots,
            "network_ms": sum(cost.network_ns for cost in times) / NS_PER_MS / self.tokens,
            "experts_ms": sum(cost.experts_ns for cost in times) / NS_PER_MS / self.tokens,
            "overhead_us_per_layer": self.overhead_us,
            "router_us": self.router_us,
            "around_experts_us": self.overhead_us + self.router_us,
            "gate": asdict(gate or self.runs.gate.stats(self.runs.prefetch_accuracy)),
            "load_s": self.load_s,
            "peak_bytes": self.peak_bytes,
        }


# The physical floor of a measured run: the least time its bytes and products could have taken, at
# the rates this machine shows in the same run with the same threads.


class StepFloor(Protocol):
    def step_s(self, step: Step, report: StepReport) -> float:
        """Seconds that one step takes at least, given what its layers found where."""

    def moving_s(self, size: int) -> float:
        """So many bytes over the link, whenever."""


@dataclass(frozen=True, slots=True)
class CpuFloor:
    """The floor without an accelerator: all that a step uses is read once, all products are
    done."""

    spec: ModelSpec
    dtype: str
    expert_dtype: str
    rates: Rates
    packed: DensePrecision | None = None  # of the dense matrices, where they are packed
    kv_dtype: str = AS_COMPUTED

    def step_s(self, step: Step, report: StepReport) -> float:
        reading = self.bytes_read(step, report) / (self.rates.read_gb_s * GB)
        return max(reading, self.flops(step) / (self.rates.tflops * 1e12))

    def moving_s(self, size: int) -> float:
        assert not size, "there is no link"
        return 0.0

    def bytes_read(self, step: Step, report: StepReport) -> int:
        spec = self.spec
        experts = sum(layer.active for layer in report.layers) * spec.expert_bytes(
            self.expert_dtype
        )
        seen = attended(spec, step)
        states = round(spec.num_layers * seen.state_bytes)
        return experts + self._dense_bytes() + self._remembered_bytes(seen) + states

    def _remembered_bytes(self, seen: Attended) -> int:
        """Keys and values; layers with a window have them as computed."""
        layers, windowed = self.spec.num_layers, seen.windowed_tokens
        kept = kv_token_bytes(self.spec, self.dtype, self.kv_dtype)
        as_computed = kv_token_bytes(self.spec, self.dtype)
        whole = round(layers * (seen.kv_tokens - windowed)) * kept
        return whole + round(layers * windowed) * as_computed

    def _dense_bytes(self) -> int:
        """All that every step reads: everything but routed experts and embedding."""
        spec = self.spec
        if self.packed is None:
            return weight_bytes(_dense_params(spec) + spec.head_params, self.dtype)
        embedding = weight_bytes(spec.head_params, self.dtype)
        return packed_dense_bytes(spec, self.dtype, self.packed) - embedding

    def flops(self, step: Step) -> float:
        spec = self.spec
        routed = spec.num_moe_layers * spec.top_k * spec.expert_params
        products = 2.0 * step.tokens * (_dense_params(spec) + routed)
        seen = attended(spec, step)
        per_layer = seen.pairs * spec.attention_flops_per_pair + seen.state_flops
        attention = spec.num_layers * per_layer
        return products + attention + 2.0 * step.num_sequences * spec.head_params


def _dense_params(spec: ModelSpec) -> int:
    """Everything but routed experts, embedding and head."""
    dense_layers = spec.num_layers - spec.num_moe_layers
    return (
        spec.all_attention_params
        + spec.num_moe_layers * (spec.router_params + spec.shared_params)
        + dense_layers * spec.dense_ffn_params
    )


def make_floor(
    rates: MeasuredRates,
    spec: ModelSpec,
    dtype: str,
    expert_dtype: str,
    packed: DensePrecision | None = None,
    kv_dtype: str = AS_COMPUTED,
) -> StepFloor:
    if rates.accelerator is None:
        return CpuFloor(spec, dtype, expert_dtype, rates.cpu, packed, kv_dtype)
    # Where parts differ, as if all were the smallest: it is a floor.
    dense = dtype if packed is None else min(packed, key=BITS_PER_WEIGHT.__getitem__)
    return Floor(Physics(_machine(rates), spec, expert_dtype, dense, kv_dtype))


def run_floor_s(
    floor: StepFloor, steps: Sequence[Step], reports: Sequence[StepReport], arrived: int
) -> float:
    """The floor of all steps together; `arrived` bytes came over the link meanwhile."""
    layers = sum(floor.step_s(step, report) for step, report in zip(steps, reports, strict=True))
    return max(layers, floor.moving_s(arrived))


def _machine(rates: MeasuredRates) -> MachineSpec:
    """The measured rates as a machine without any fixed cost."""
    gpu, link = rates.accelerator, rates.link_gb_s
    assert gpu is not None, "only a machine with an accelerator has cuts"
    assert link is not None, "it has a link"
    every, memory_gb = 1.0, 1.0  # nothing is lost; how much fits is not the floor's business
    return MachineSpec(
        name="measured",
        title="measured",
        description="",
        notes=(),
        gpu=GpuSpec(
            "accelerator", memory_gb, gpu.read_gb_s, every, _same(gpu.tflops), every, 0.0, 0.0
        ),
        cpu=CpuSpec(
            "cpu", rates.cpu.threads, memory_gb, rates.cpu.read_gb_s, every,
            _same(rates.cpu.tflops), every, 0.0, 0.0,
        ),
        pcie=LinkSpec(link, 0.0),
        planner=PlannerSpec(0.0, 0.0, 0.0, 0.0),
        sources={},
    )  # fmt: skip


def _same(tflops: float) -> dict[str, float]:
    """Weights of every precision are multiplied in the activations'."""
    return dict.fromkeys(BITS_PER_WEIGHT, tflops)
