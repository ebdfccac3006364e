"""Inputs the benchmarks share, made from a fixed seed."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from moesaic.hardware.load import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble, workload
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.belief import Belief
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
    deciding, looking = [], []
    for routed in workload(settings, source):
        body.begin(routed.step, routed.layer)
        for layer in range(settings.model.num_moe_layers):
            routing, view = body.route(layer), body.view(layer)
            start = perf_counter_ns()
            plan = brain.decide(routing, view)
            decided = perf_counter_ns()
            body.start(plan, 0)
            started = perf_counter_ns()
            background = brain.look_ahead()
            looking.append((perf_counter_ns() - started) / 1000)
            deciding.append((decided - start) / 1000)
            body.offer(background, 0)
            brain.learn(routing, body.wait())
        body.finish()
    return deciding, looking
