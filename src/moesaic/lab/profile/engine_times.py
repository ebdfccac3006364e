"""What the engine itself costs, and how fast experts are inside it: steps of a small random model,
taken apart. Twice: with static experts, and with transfers and look-ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter_ns

from moesaic.core.dtypes import weight_bytes
from moesaic.core.layer_plan import Move
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import Timeline
from moesaic.core.routing import Forecast
from moesaic.core.units import NS_PER_S
from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.brain import Brain
from moesaic.policies.systems import load_system

# Large enough that no cache holds what a step reads: 0.6 GB of 4 GB.
MODEL, LAYERS = "olmoe-1b-7b", 4
STILL, MOVING = "ktransformers", "moesaic"
_STEPS, _WARMUP, _BATCH = 24, 4, 8
_US = 1e6 / NS_PER_S


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Microseconds per layer, one token: `attention_us` is attention and router, which read so
    many bytes of weights; `decision_us` the engine's work around the experts of a layer,
    without the look-ahead. `expert_us` is one expert on each lane, while the other lane
    works, too."""

    attention_us: float
    attention_bytes: int
    decision_us: float
    per_expert_us: float
    lookahead_us: float
    lookahead_per_token_us: float
    expert_us: dict[str, float]


def measure_engine(settings: EngineSettings) -> EngineTimes:
    architecture = synthetic_architecture(MODEL, LAYERS)
    spec = architecture.spec
    decoder = synthetic_decoder(architecture, "bf16")
    store = synthetic_store(decoder, "bf16")
    accelerated = settings.capabilities.moves

    def measured(system: str, batches: tuple[int, ...], slots: int) -> list[_PerLayer]:
        chosen = settings.with_system(load_system(system))
        chosen = replace(chosen, max_step_tokens=_BATCH)
        runner = on_store(decoder, store, chosen, Capacity(slots, _BATCH, 64), timeline=Timeline())
        try:
            return [_measure(runner, batch) for batch in batches]
        finally:
            runner.close()

    every = spec.num_expert_blocks
    (still,) = measured(STILL, (1,), every // 2 if accelerated else 0)
    one, many = measured(MOVING, (1, _BATCH), every // 4 if accelerated else 0)
    per_expert = (many.overhead_us - one.overhead_us) / max(many.active - one.active, 1)
    return EngineTimes(
        attention_us=still.attention_us,
        attention_bytes=weight_bytes(spec.attention_params + spec.router_params, "bf16"),
        decision_us=(still.overhead_us + one.overhead_us) / 2,
        per_expert_us=max(per_expert, 0.0),
        lookahead_us=one.lookahead_us,
        lookahead_per_token_us=max(many.lookahead_us - one.lookahead_us, 0.0) / (_BATCH - 1),
        expert_us=still.expert_us,
    )


@dataclass(frozen=True, slots=True)
class _PerLayer:
    attention_us: float
    overhead_us: float
    lookahead_us: float
    active: float
    expert_us: dict[str, float]


def _measure(runner: Runner, batch: int) -> _PerLayer:
    looking: list[int] = []
    restore = _time_look_ahead(runner.brain, looking)
    overhead, active = [], []
    vocabulary = runner.decoder.architecture.spec.vocab_size
    for step in range(_STEPS + _WARMUP):
        if step == _WARMUP:
            looking.clear()
            runner.machine.timeline.spans.clear()
        tokens = [(977 * step + 131 * slot) % vocabulary for slot in range(batch)]
        runner.step(ForwardPass([Piece(slot, [token]) for slot, token in enumerate(tokens)]))
        times, report = runner.machine.times, runner.report
        assert report is not None, "a step was just done"
        overhead.append(times.overhead_ns / LAYERS)
        active.append(sum(layer.active for layer in report.layers) / LAYERS)
    for slot in range(batch):
        runner.free_slot(slot)
    restore()
    return _PerLayer(
        _attention_us(runner.machine.timeline),
        median(overhead[_WARMUP:]) * _US,
        median(looking) * _US,
        median(active[_WARMUP:]),
        _expert_us(runner.machine.timeline),
    )


def _time_look_ahead(brain: Brain, taken: list[int]) -> Callable[[], None]:
    """Note how long look-aheads take, with the forecasts that the body makes for them; returns how
    to stop."""
    ask, think = brain.wants_forecasts, brain.look_ahead
    started = 0

    def timed_ask() -> int:
        nonlocal started
        started = perf_counter_ns()
        return ask()

    def timed_think(
        forecasts: Sequence[Forecast] = (), body_forecasts: bool = True
    ) -> tuple[Move, ...]:
        nonlocal started
        started = started or perf_counter_ns()
        try:
            return think(forecasts, body_forecasts)
        finally:
            taken.append(perf_counter_ns() - started)
            started = 0

    def restore() -> None:
        brain.wants_forecasts, brain.look_ahead = ask, think  # type: ignore[method-assign]

    brain.wants_forecasts, brain.look_ahead = timed_ask, timed_think  # type: ignore[method-assign]
    return restore


def _attention_us(timeline: Timeline) -> float:
    """A layer's attention and router; the first also embeds, and the head comes after the last."""
    inner = [s for s in timeline.spans if s.kind == "dense" and 0 < s.layer < LAYERS]
    return median(s.end_ns - s.start_ns for s in inner) * _US


def _expert_us(timeline: Timeline) -> dict[str, float]:
    """One expert on each lane that computed some: its part of the call it was computed in."""
    found = {}
    for lane in (GPU, CPU):
        spans = [s for s in timeline.spans if s.lane == lane and s.kind == "expert"]
        if spans:
            found[lane] = median((s.end_ns - s.start_ns) / len(s.computed) for s in spans) * _US
    return found
