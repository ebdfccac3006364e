"""Inputs the benchmarks share, made from a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble, workload
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.belief import Belief
from moesaic.policies.brain import Brain
from moesaic.policies.schedule.base import Work
from moesaic.policies.systems import load_system
from moesaic.policies.timelines import ABSENT, gather
from moesaic.workloads.steps import popularity


def decode_layer(experts: int, active: int, tokens: int) -> Work:
    """A layer with about a third of its experts on the GPU and costs of a real machine's kind."""
    rng = np.random.default_rng(0)
    popular = rng.permutation(experts)[:active]
    draws = popular[None, :] if tokens == 1 else popular[rng.integers(0, active, (tokens, 8))]
    chosen = np.concatenate([popular, draws.ravel()])[None, :] if tokens > 1 else draws
    resident = (rng.random(experts) < 0.33).astype(np.uint8)
    table = np.zeros((3, experts), dtype=np.int64)
    n = gather(chosen.astype(np.int64), resident, table, np.zeros(experts, dtype=np.int64))
    assert n == active, f"{n} experts are active, not {active}"
    assert (table[2, :n] == ABSENT).any(), "a layer without misses would be no work"
    counts = np.arange(chosen.size + 1, dtype=np.int64)
    belief = Belief(np.stack([20_000 + 100 * counts, 70_000 + 9_000 * counts]), 60_000, 380_000)
    lanes = np.array([10_000, 0, 0, belief.cpu_first_ns, belief.transfer_ns], dtype=np.int64)
    return Work(0, n, table, lanes, belief)


def decision_times_us(model: str, batch: int, steps: int) -> tuple[list[float], list[float]]:
    """How long the brain takes in a simulated decode run under hybrid + mrs + impact: per layer,
    for the decision and for the look-ahead."""
    settings = Settings(
        load_model(model),
        load_machine("a6000-xeon5220r"),
        policies=load_system("hybrimoe").policies,
        batch=batch,
        tokens=steps,
        warmup=min(steps, 32),
        expert_dtype="int4",
        dense_dtype="int4",
    )
    source = choose_workload(None, settings).source
    body, brain = assemble(settings, popularity(source, settings.profile_tokens), (), None)
    timed = _Timed(brain)
    for routed in workload(settings, source):
        body.step(routed, timed)
    return timed.deciding_us, timed.looking_us


class _Timed:
    """A brain that records its decision times."""

    def __init__(self, brain: Brain) -> None:
        self._brain, self.learn = brain, brain.learn
        self.wants_forecasts = brain.wants_forecasts
        self.deciding_us: list[float] = []
        self.looking_us: list[float] = []

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        start = perf_counter_ns()
        plan = self._brain.decide(routing, view)
        self.deciding_us.append((perf_counter_ns() - start) / 1000)
        return plan

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        start = perf_counter_ns()
        background = self._brain.look_ahead(forecasts)
        self.looking_us.append((perf_counter_ns() - start) / 1000)
        return background
