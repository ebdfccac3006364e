"""The result of a simulated run: latencies, hit rate, bytes, busy time, and the physical floor."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from moesaic.core.body import Decider
from moesaic.core.report import StepReport
from moesaic.core.units import NS_PER_S
from moesaic.engine.gate_stats import NO_GATE, GateCounter, GateStats
from moesaic.lab.simulate.floor import Floor
from moesaic.lab.simulate.gated_steps import Pass
from moesaic.lab.simulate.settings import Settings
from moesaic.machines.sim import SimMachine
from moesaic.policies.brain import Brain
from moesaic.policies.fallback_prefetch import FallbackPrefetch
from moesaic.workloads.source import TraceSource


@dataclass(frozen=True, slots=True)
class Result:
    """One measured run; docs/metrics.md defines every field."""

    settings: Settings
    trace: dict[str, Any]
    latencies_s: tuple[float, ...] = field(repr=False)
    tokens: int
    hit_rate: float
    utilization: dict[str, float]
    bytes_moved: int
    planning_s: float
    floor_parts_s: dict[str, float]
    slots: int
    prediction_accuracy: tuple[float, ...]
    wall_s: float
    gate: GateStats = NO_GATE

    @property
    def elapsed_s(self) -> float:
        return sum(self.latencies_s)

    @property
    def floor_s(self) -> float:
        return max(self.floor_parts_s.values())

    @property
    def mean_s(self) -> float:
        """Between the tokens of a sequence, or per prompt: passes whose tokens did not stand count
        for the tokens that did."""
        return self.elapsed_s * self.settings.tokens_per_step / self.tokens

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.elapsed_s

    def as_dict(self) -> dict[str, Any]:
        """The result as `simulate --json` prints it."""
        settings = self.settings
        p50, p99 = np.percentile(self.latencies_s, [50, 99])
        return {
            "model": settings.model.name,
            "machine": settings.machine.name,
            "phase": settings.phase,
            "policies": settings.policies.as_dict(settings.phase),
            "cache_ratio": settings.cache_ratio,
            "slots": self.slots,
            "expert_dtype": settings.expert_dtype,
            "dense_dtype": settings.dense_dtype,
            "batch": settings.batch,
            "context": settings.context,
            "kv_cache": settings.kv_cache,
            "kv_dtype": settings.kv_dtype,
            "belief": settings.belief,
            "belief_error": dict(settings.belief_error),
            "steps": len(self.latencies_s),
            "tokens": self.tokens,
            "trace": self.trace,
            "latency_s": {"mean": self.mean_s, "p50": float(p50), "p99": float(p99)},
            "tokens_per_s": self.tokens_per_s,
            "hit_rate": self.hit_rate,
            "utilization": self.utilization,
            "bytes_moved": self.bytes_moved,
            "planning_s": self.planning_s,
            "floor_s": self.floor_s,
            "floor_parts_s": self.floor_parts_s,
            "floor_ratio": self.elapsed_s / self.floor_s,
            "prediction_accuracy": list(self.prediction_accuracy),
            "gate": asdict(self.gate),
            "wall_s": self.wall_s,
        }


class ResultCounter:
    """Adds up the measured part of a run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._latencies: list[float] = []
        self._tokens = self._hits = self._active = self._wall_ns = 0
        self._floor_s = 0.0
        self.opened = False
        self._gate = GateCounter(
            settings.policies.gate.name, settings.model.top_k * settings.model.num_moe_layers
        )

    def open(self, machine: SimMachine, decider: Decider) -> None:
        """Measurement starts now."""
        self.opened, self._judged_before = True, _judged(decider)
        self._start_ns, self._bytes = machine.clock.now, machine.bytes_moved
        self._planning_ns = machine.planning_ns
        self._busy = {name: lane.worked_ns for name, lane in machine.lanes.items()}

    def add(self, report: StepReport, floor_s: float, wall_ns: int) -> None:
        self._latencies.append(report.latency_ns / NS_PER_S)
        self._hits += sum(layer.hits for layer in report.layers)
        self._active += sum(layer.active for layer in report.layers)
        self._floor_s += floor_s
        self._wall_ns += wall_ns

    def add_tokens(self, report: StepReport, done: Pass) -> None:
        """Those of the pass that stand."""
        self._tokens += done.stands
        first, prompt = report.tokens - done.again, self._settings.phase == "prefill"
        if prompt:
            return
        active = sum(layer.active for layer in report.layers)
        alone = self._settings.batch == 1
        self._gate.add(first, done.again, 0, report.latency_ns, active, alone)
        for drafted, stood in done.checks:
            self._gate.add_check(drafted, stood)

    def close(
        self,
        machine: SimMachine,
        brain: Brain,
        floor: Floor,
        source: TraceSource,
        decider: Decider,
        full_s: float | None,
    ) -> Result:
        elapsed = machine.clock.now - self._start_ns
        moved = machine.bytes_moved - self._bytes
        arrived = moved - sum(moving.size for moving in machine.moves.under_way)
        header = source.header
        return Result(
            settings=self._settings,
            trace={
                "source": header.source,
                "synthetic": header.synthetic,
                "origin": header.origin,
            },
            latencies_s=tuple(self._latencies),
            tokens=self._tokens,
            hit_rate=self._hits / self._active,
            utilization={
                name: (lane.worked_ns - self._busy[name]) / elapsed
                for name, lane in machine.lanes.items()
            },
            bytes_moved=moved,
            planning_s=(machine.planning_ns - self._planning_ns) / NS_PER_S,
            floor_parts_s={"layers": self._floor_s, "link": floor.moving_s(max(arrived, 0))},
            slots=self._settings.slots,
            prediction_accuracy=brain.forecast_accuracy,
            wall_s=self._wall_ns / NS_PER_S,
            gate=self._gate_stats(decider, full_s),
        )

    def _gate_stats(self, decider: Decider, full_s: float | None) -> GateStats:
        (right, judged), (before, judged_before) = _judged(decider), self._judged_before
        right, judged = right - before, judged - judged_before
        found = self._gate.stats(right / judged if judged else None, full_s)
        if full_s is None or not self._tokens:
            return found
        return replace(found, measured_speedup=full_s * self._tokens / sum(self._latencies))


def _judged(decider: Decider) -> tuple[int, int]:
    """How many experts of tokens that ran again were predicted, and of how many."""
    return (decider.right, decider.judged) if isinstance(decider, FallbackPrefetch) else (0, 0)
