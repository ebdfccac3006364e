"""What the engine itself costs: steps of a small random model, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

from moesaic.core.dtypes import weight_bytes
from moesaic.core.plan import Transfer
from moesaic.core.units import GB, NS_PER_S
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.generation.assembly import on_store, synthetic_store
from moesaic.engine.generation.runner import Feed, Runner
from moesaic.engine.room import Room
from moesaic.models.synthetic import synthetic_architecture, synthetic_decoder

MODEL, LAYERS = "olmoe-1b-7b", 2
_STEPS, _WARMUP, _BATCH = 24, 4, 8


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Microseconds per layer: `layer_us` is the fixed part of attention and router (beyond reading
    their weights), `decision_us` everything the conductor does around the experts of a layer,
    the look-ahead apart."""

    layer_us: float
    decision_us: float
    per_expert_us: float
    lookahead_us: float
    lookahead_per_token_us: float


def measure_engine(settings: EngineSettings, bandwidth_gb_s: float) -> EngineTimes:
    """`bandwidth_gb_s` is what dense weights stream at."""
    architecture = synthetic_architecture(MODEL, LAYERS)
    spec = architecture.spec
    decoder = synthetic_decoder(architecture, "bf16")
    store = synthetic_store(decoder, "bf16")
    slots = spec.num_expert_blocks // 4 if settings.accelerator != "none" else 0
    runner = on_store(decoder, store, settings, Room(slots, _BATCH, 64))
    try:
        one, many = _measure(runner, 1), _measure(runner, _BATCH)
    finally:
        runner.close()
    dense = spec.num_layers * (spec.attention_params + spec.router_params) + spec.head_params
    reading_us = weight_bytes(dense, "bf16") / (bandwidth_gb_s * GB) * 1e6
    per_expert = (many.overhead_us - one.overhead_us) / max(many.active - one.active, 1)
    return EngineTimes(
        layer_us=max(one.network_us - reading_us / LAYERS, 0.0),
        decision_us=one.overhead_us,
        per_expert_us=max(per_expert, 0.0),
        lookahead_us=one.lookahead_us,
        lookahead_per_token_us=max(many.lookahead_us - one.lookahead_us, 0.0) / (_BATCH - 1),
    )


@dataclass(frozen=True, slots=True)
class _PerLayer:
    network_us: float
    overhead_us: float
    lookahead_us: float
    active: float


def _measure(runner: Runner, batch: int) -> _PerLayer:
    looking: list[int] = []
    think = runner.brain.look_ahead

    def timed() -> tuple[Transfer, ...]:
        started = perf_counter_ns()
        try:
            return think()
        finally:
            looking.append(perf_counter_ns() - started)

    runner.brain.look_ahead = timed  # type: ignore[method-assign]
    network, overhead, active = [], [], []
    for step in range(_STEPS + _WARMUP):
        runner.step([Feed(slot, [(7 * step + slot) % 97]) for slot in range(batch)])
        if step < _WARMUP:
            looking.clear()
            continue
        costs, report = runner.machine.costs, runner.report
        assert report is not None, "a step was just done"
        network.append(costs.network_ns / LAYERS)
        overhead.append(costs.overhead_ns / LAYERS)
        active.append(sum(layer.active for layer in report.layers) / LAYERS)
    for slot in range(batch):
        runner.forget(slot)
    runner.brain.look_ahead = think  # type: ignore[method-assign]
    us = 1e6 / NS_PER_S
    return _PerLayer(
        median(network) * us, median(overhead) * us, median(looking) * us, median(active)
    )
