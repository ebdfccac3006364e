"""Notes of the steps, taken while an insight is wanted: what was routed, what the brain saw and
planned, and what came of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.body import Decider
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import LayerReport, StepReport
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.engine.insight.facts import StepKind
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.policies.brain import Brain

WATCHED_S = 5.0  # after an insight was asked for
WINDOW = 128  # steps of which the routing is kept
Ints = NDArray[np.int64]


class Planning(NamedTuple):
    """What the brain planned one layer with: copies of its records."""

    plan: LayerPlan
    table: Ints  # experts, loads, when each is there; see policies/timelines.py
    lanes: list[int]
    costs: Ints  # [GPU and CPU, tokens]


class NotedLayer(NamedTuple):
    chosen: Ints  # [tokens, k], a negative number where a token uses fewer
    planning: Planning | None  # None: there was nothing to decide


class NotedStep(NamedTuple):
    number: int
    kind: StepKind
    tokens: int
    sequences: int
    executor: str
    report: StepReport
    layers: list[NotedLayer]
    trace: object | None  # of an executor that shows no layers; see `Executor.trace`


class RoutedStep(NamedTuple):
    """`order[layer, expert]`: how late in the step its last use was; -1: not used."""

    order: NDArray[np.int32]
    active: int
    hits: int


class StepLog:
    """Used by the batcher's thread alone. While it is off, a step costs one comparison."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._until = 0.0
        self._noted: list[NotedLayer] = []  # of the pass under way
        self._steps = 0
        self.on = False
        self.last: NotedStep | None = None
        self.window: deque[RoutedStep] = deque(maxlen=WINDOW)

    def want(self) -> None:
        """Notes are wanted for the next seconds."""
        self._until = monotonic() + WATCHED_S
        if not self.on:
            self.on = True
            self._runner.machine.watch(self)

    def add(self, work: ForwardPass) -> None:
        """The step just done."""
        if not self.on:
            return
        if monotonic() > self._until:
            self._stop()
            return
        machine, report = self._runner.machine, self._runner.report
        assert report is not None, "a step has been done"
        assert machine.last is not None, "by an executor"
        layers, self._noted = self._noted, []
        whole = len(layers) == len(report.layers)
        trace = None if whole or work.ahead else machine.trace()
        prompts = sum(piece.of_prompt for piece in work.pieces)
        kind: StepKind = "decode" if not prompts else "mixed"
        if prompts == len(work.pieces):
            kind = "prompt"
        self._steps += 1
        if not (whole or trace is not None):
            return
        self.last = NotedStep(
            self._steps, kind, report.tokens, len(work.pieces), machine.last.name, report,
            layers if whole else [], trace,
        )  # fmt: skip
        chosen = [layer.chosen for layer in layers] if whole else _chosen_in(trace)
        self._keep_routing(chosen, report)

    def _stop(self) -> None:
        self._runner.machine.watch(None)
        self.on, self._noted, self.last = False, [], None
        self.window.clear()

    def _keep_routing(self, chosen: Sequence[Ints], report: StepReport) -> None:
        spec = self._runner.decoder.architecture.spec
        active = sum(layer.active for layer in report.layers)
        hits = sum(layer.hits for layer in report.layers)
        order = np.stack([use_order(each, spec.num_experts) for each in chosen])
        self.window.append(RoutedStep(order, active, hits))

    # A `StepWatch`.

    def around(self, brain: Decider) -> Decider:
        self._noted = []
        return _Noting(brain, self._runner.brain, self._noted)

    def routed(self, routing: LayerRouting) -> None:
        if routing.layer == 0:
            self._noted = []
        self._noted.append(NotedLayer(routing.experts.copy(), None))


def use_order(chosen: Ints, experts: int) -> NDArray[np.int32]:
    """By expert, how late its last use was; `chosen` [tokens, k] of one layer, best first. Later
    tokens are later, and within a token better ranks are."""
    order = np.full(experts + 1, -1, dtype=np.int32)  # the last: no expert
    flat = chosen[:, ::-1].ravel()
    order[flat] = np.arange(len(flat), dtype=np.int32)
    return order[:-1]


def _chosen_in(trace: object) -> list[Ints]:
    """By layer, of a step that leaves no routing: its experts as if one token had chosen them."""
    work = getattr(trace, "work", ())
    return [np.array([[*layer.cpu, *layer.gpu]], dtype=np.int64) for layer in work]


class _Noting:
    """A brain that forwards every call and notes what it saw."""

    def __init__(self, brain: Decider, planner: Brain, noted: list[NotedLayer]) -> None:
        self._brain, self._planner, self._noted = brain, planner, noted

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        plan = self._brain.decide(routing, view)
        planning: Planning | None = None
        if view.slots:
            state = self._planner.state
            decision, tokens = state.decision, routing.num_tokens + 1
            planning = Planning(
                plan,
                decision.table[:, : decision.active].copy(),
                decision.lanes.tolist(),
                state.costs.tables[:, :tokens].copy(),
            )
        self._noted.append(NotedLayer(routing.experts.copy(), planning))
        return plan

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        return self._brain.look_ahead(forecasts)

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        self._brain.learn(routing, report)

    def wants_forecasts(self) -> int:
        return self._brain.wants_forecasts()
