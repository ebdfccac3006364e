"""Inputs the benchmarks share, made from a fixed seed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
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
from moesaic.policies.brain.decide import fill_routing, fill_view
from moesaic.policies.brain.plan_words import read_moves, read_plan
from moesaic.policies.brain.stages import DECIDE, LOOK_AHEAD, address
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.records import MOVE_WORDS
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


def decision_times_us(
    model: str, batch: int, steps: int, native: bool = False, policies: PolicySet | None = None
) -> tuple[list[float], list[float]]:
    """How long the brain takes in a simulated decode run under `policies` (none: hybrid + mrs +
    impact): per layer, for the decision and for the look-ahead. `native`: of the C functions, on
    records that are filled in already, as a conductor in native code calls them."""
    settings = Settings(
        load_model(model),
        load_machine("a6000-xeon5220r"),
        policies=policies or load_system("hybrimoe").policies,
        batch=batch,
        tokens=steps,
        warmup=min(steps, 32),
        expert_dtype="int4",
        dense_dtype="int4",
    )
    source = choose_workload(None, settings).source
    body, brain = assemble(settings, popularity(source, settings.profile_tokens), (), None)
    timed = _NativelyTimed(brain) if native else _Timed(brain)
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


class _NativelyTimed(_Timed):
    """The same through the C functions: filling in records and reading the plan do not count."""

    def __init__(self, brain: Brain) -> None:
        super().__init__(brain)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        brain.link_rules()
        self._decide, self._look_ahead = function(address(DECIDE)), function(address(LOOK_AHEAD))

    def wants_forecasts(self) -> int:
        return 0

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        brain = self._brain
        brain.reserve(len(routing.experts), max(routing.ranked.shape[1], routing.experts.shape[1]))
        state = brain.state
        coming = view.arriving if view.in_flight else ()
        state.inputs.num_flights = len(coming)
        for number, flight in enumerate(coming):
            brain.state.inputs.flights[number] = flight[:3]
        fill_routing(
            state.inputs,
            routing.step,
            routing.layer,
            routing.experts,
            routing.ranked,
            routing.scores,
        )
        busy = (view.gpu_busy_ns, view.cpu_busy_ns, view.pcie_busy_ns)
        fill_view(state.inputs, view.resident, view.held, view.occupied, *busy)
        state.forecasts.count = state.forecasts.from_body = 0
        length = self._timed(self._decide, self.deciding_us)
        return read_plan(routing.layer, brain.state.decision.plan[:length].tolist())

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        count = self._timed(self._look_ahead, self.looking_us)
        moves = self._brain.state.ahead.background.ravel()[: count * MOVE_WORDS]
        return read_moves(moves.tolist(), count)

    def _timed(self, function: Callable[[int], int], times: list[float]) -> int:
        state = self._brain.state.address
        start = perf_counter_ns()
        result = function(state)
        times.append((perf_counter_ns() - start) / 1000)
        return result
