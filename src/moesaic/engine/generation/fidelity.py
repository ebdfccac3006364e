"""How well the simulator predicts this machine: the same model, policies, placement and routing on
both bodies, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.generation.assembly import on_store
from moesaic.engine.generation.replay import replay_steps
from moesaic.engine.room import Room
from moesaic.engine.settings import Settings
from moesaic.engine.simulation import simulate, workload
from moesaic.hardware.spec import MachineSpec
from moesaic.machines.real.store import ExpertStore
from moesaic.models.decoder import Decoder
from moesaic.policies.systems import load_system
from moesaic.workloads.source import TraceSource
from moesaic.workloads.steps import popularity

SYSTEMS = ("hybrimoe", "ktransformers", "adapmoe")
RATIOS = (0.25, 0.5)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median milliseconds per decode step, predicted and measured."""

    system: str
    cache_ratio: float
    predicted_ms: float
    measured_ms: float
    predicted_hits: float
    measured_hits: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to the measurement."""
        return self.predicted_ms / self.measured_ms - 1.0


def compare_bodies(
    decoder: Decoder,
    store: ExpertStore,
    machine: MachineSpec,
    source: TraceSource,
    base: EngineSettings,
    systems: Sequence[str] = SYSTEMS,
    ratios: Sequence[float] = RATIOS,
    steps: int = 48,
    warmup: int = 16,
    tell: Callable[[Comparison], None] = lambda row: None,
) -> list[Comparison]:
    """Every system at every cache ratio; `tell` is told each row when it is there."""
    rows = []
    for ratio in ratios:
        for system in systems:
            settings = _simulated(decoder, store, machine, system, ratio, steps, warmup)
            row = _compare(decoder, store, source, base, settings, system)
            rows.append(row)
            tell(row)
    return rows


def _simulated(
    decoder: Decoder,
    store: ExpertStore,
    machine: MachineSpec,
    system: str,
    ratio: float,
    steps: int,
    warmup: int,
) -> Settings:
    settings = Settings(
        decoder.architecture.spec,
        machine,
        cache_ratio=ratio,
        tokens=steps,
        warmup=warmup,
        expert_dtype=store.kernel.dtype,
    )
    return settings.with_system(load_system(system))


def _compare(
    decoder: Decoder,
    store: ExpertStore,
    source: TraceSource,
    base: EngineSettings,
    settings: Settings,
    system: str,
) -> Comparison:
    predicted = simulate(settings, source).as_dict()
    engine = replace(base, max_step_tokens=8).with_system(load_system(system))
    length = settings.warmup_steps + settings.steps
    counts = popularity(source, settings.profile_tokens)
    runner = on_store(decoder, store, engine, Room(settings.slots, 1, length), counts)
    try:
        measured = replay_steps(runner, workload(settings, source), settings.warmup_steps)
    finally:
        runner.close()
    return Comparison(
        system,
        settings.cache_ratio,
        predicted["latency_s"]["p50"] * 1e3,
        measured.median_s * 1e3,
        predicted["hit_rate"],
        measured.hit_rate,
    )
