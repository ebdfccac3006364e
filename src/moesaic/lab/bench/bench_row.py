"""One row of a bench: a test under one set of policies. docs/metrics.md defines every field."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import stdev
from typing import Any

from moesaic.core.units import NS_PER_MS
from moesaic.engine.dense_weights import packed_dtype
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gate_stats import GateStats
from moesaic.engine.memory.memory_plan import MemoryPlan
from moesaic.lab.bench.bench_steps import CaseRuns
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.rates import MeasuredRates
from moesaic.lab.bench.real_floor import make_floor, run_floor_s
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
        """Of tokens per second over the repetitions; nothing can be said about one."""
        rates = [self.case.all_tokens / seconds for seconds in self.runs.seconds]
        return stdev(rates) if len(rates) > 1 else None

    @property
    def overhead_us(self) -> float:
        """The engine's own time per routed layer, the median step's."""
        measured = self.runs.measured
        return measured.overhead_us(len(measured.reports[0].layers))

    @property
    def router_us(self) -> float:
        """Of one routed layer's norm and router, the median step's."""
        measured = self.runs.measured
        return measured.router_us(len(measured.reports[0].layers))

    def floor_s(self, rates: MeasuredRates) -> float:
        """Of all repetitions together."""
        spec, plan, runs = self.config.spec, self.config.plan, self.runs
        packed = packed_dtype(self.config.settings, plan.dtype)
        floor = make_floor(rates, spec, plan.dtype, plan.expert_dtype, packed)
        last = spec.expert_bytes(plan.expert_dtype)  # it may still be under way
        arrived = max(runs.measured.bytes_moved - last, 0)
        return run_floor_s(floor, runs.steps, runs.measured.reports, arrived)

    def as_dict(self, rates: MeasuredRates, gate: GateStats | None = None) -> dict[str, Any]:
        """As `bench --json` prints it; `gate`: with what other rows say (gate_gain.py)."""
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
