"""A run of the conductor, kept: what its brain saw and decided in every layer. It can be decided
again by a brain that never met the machine, here or from a file that another machine has left."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import LayerReport
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import Flight, View, offloading_view
from moesaic.policies.belief import Belief
from moesaic.policies.brain import Brain
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape


@dataclass(frozen=True, slots=True)
class ConductedRun:
    """`points`: costs that the belief is made of; `decisions` as `Decision._asdict()`."""

    machine: str
    policies: tuple[str, str, str]
    shape: tuple[int, int, int]
    slots: int
    points: dict[str, Any]
    routings: list[LayerRouting]
    decisions: list[dict[str, Any]]

    def brain(self) -> Brain:
        """Of the same kind, on the same costs, new."""
        schedule, cache, prefetch = self.policies
        policies = PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)
        return Composition(policies, Shape(*self.shape), self.slots).brain(belief_of(self.points))


def belief_of(points: dict[str, Any]) -> Belief:
    gpu, cpu = ({int(t): ns for t, ns in points[name].items()} for name in ("gpu", "cpu"))
    return Belief.from_points(gpu, cpu, points["first"], points["transfer"], points["tokens"])


def save(run: ConductedRun, path: Path) -> None:
    routings = [
        {
            "layer": r.layer, "step": r.step, "experts": r.experts.tolist(),
            "weights": r.weights.tolist(), "ranked": r.ranked.tolist(),
            "scores": r.scores.tolist(),
        }
        for r in run.routings
    ]  # fmt: skip
    kept = {name: getattr(run, name) for name in ("machine", "policies", "shape", "slots")}
    content = {**kept, "points": run.points, "routings": routings, "decisions": run.decisions}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), 9, mtime=0))


def load(path: Path) -> ConductedRun:
    content = json.loads(gzip.decompress(path.read_bytes()))
    routings = [
        LayerRouting(
            r["layer"], np.array(r["experts"], dtype=np.int64),
            np.array(r["weights"], dtype=np.float32), np.array(r["ranked"], dtype=np.int64),
            np.array(r["scores"], dtype=np.float32), step=r["step"],
        )
        for r in content["routings"]
    ]  # fmt: skip
    return ConductedRun(**{**content, "routings": routings})


def assert_decided_again(
    brain: Brain,
    routings: Sequence[LayerRouting],
    decisions: Sequence[dict[str, Any]],
    shape: Shape,
    slots: int,
    forecasts: Sequence[tuple[Forecast, ...]] = (),
    look_ahead_to: int = 1 << 30,
) -> None:
    """Every plan and every background move, from the views that were recorded. `forecasts`: what
    the body knew of later layers, by layer, where it could. `look_ahead_to`: tokens of the longest
    step in which it asked for moves."""
    assert len(routings) == len(decisions) > 0
    for number, (routing, decision) in enumerate(zip(routings, decisions, strict=True)):
        plan = brain.decide(routing, _seen(decision, shape, slots))
        assert _plan_words(plan) == decision["plan"]
        moves: tuple[Move, ...] = ()
        if len(routing.experts) <= look_ahead_to:
            known = forecasts[number] if forecasts else ()
            wanted = brain.wants_forecasts() if known else 0
            moves = brain.look_ahead(known[:wanted])
        assert _words_of(moves) == decision["background"]
        active = sum(map(len, plan.queues.values()))
        times = (decision["report_start_ns"], decision["report_end_ns"])
        cpu_ns = decision.get("report_cpu_ns", 0)  # older recordings have none
        report = LayerReport(routing.layer, *times, active, decision["hits"], 0, 0, cpu_ns)
        brain.learn(routing, report)


def _seen(decision: dict[str, Any], shape: Shape, slots: int) -> View:
    resident = np.array(decision["resident"], dtype=np.uint8).reshape(shape.layers, shape.experts)
    flights = np.array(decision["flights"], dtype=np.int64).reshape(-1, 3).tolist()
    busy = decision["link_busy_ns"]
    view = offloading_view(resident, slots, tuple(Flight(*f) for f in flights), pcie_busy_ns=busy)
    assert view.held.tolist() == decision["held"]
    assert view.occupied == decision["occupied"]
    return view


def _words_of(moves: tuple[Move, ...]) -> list[int]:
    found = []
    for move in moves:
        victim = (-1, -1) if move.victim is None else move.victim
        found += [move.layer, move.expert, *victim, int(move.keep)]
    return found


def _plan_words(plan: LayerPlan) -> list[int]:
    gpu, cpu = plan.queues["gpu"], plan.queues["cpu"]
    header = [len(gpu), len(cpu), len(plan.transfers), plan.believed_ns]
    return [*header, *gpu, *cpu, *_words_of(plan.transfers)]
