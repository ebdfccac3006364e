"""Does the conductor's brain decide as the one that Python asks? Every layer of a conducted run is
decided again from what was recorded, by another brain of the same kind."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("moesaic.machines.cuda._conductor")

from pretended_gpu import EXPERTS, LAYERS, TOP_K, Scene

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import LayerReport
from moesaic.core.view import Flight, View, offloading_view
from moesaic.machines.cuda.conductor import Decision
from moesaic.policies.policy_set import PolicySet


def seen(decision: Decision, slots: int) -> View:
    resident = np.array(decision.resident, dtype=np.uint8).reshape(LAYERS, EXPERTS)
    flights = np.array(decision.flights, dtype=np.int64).reshape(-1, 3).tolist()
    view = offloading_view(
        resident, slots, tuple(Flight(*f) for f in flights), pcie_busy_ns=decision.link_busy_ns
    )
    assert view.held.tolist() == decision.held
    assert view.occupied == decision.occupied
    return view


def words_of(moves: tuple[Move, ...]) -> list[int]:
    found = []
    for move in moves:
        victim = (-1, -1) if move.victim is None else move.victim
        found += [move.layer, move.expert, *victim, int(move.keep)]
    return found


def plan_words(plan: LayerPlan) -> list[int]:
    gpu, cpu = plan.queues["gpu"], plan.queues["cpu"]
    header = [len(gpu), len(cpu), len(plan.transfers), plan.believed_ns]
    return [*header, *gpu, *cpu, *words_of(plan.transfers)]


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(
    "names", [("hybrid", "mrs", "impact"), ("best-split", "two-speed", "next-layer")]
)
def test_every_decision_is_made_again(names: tuple[str, str, str], tokens: int) -> None:
    schedule, cache, prefetch = names
    policies = PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)
    scene, rng = (
        Scene(policies, slots=9, tokens=tokens, copy_ns=2_000_000),
        np.random.default_rng(2),
    )
    for number in range(40):
        popular = rng.permutation(EXPERTS - 2)  # so that there is something to learn
        rows = [[rng.permutation(popular[:5])[:TOP_K] for _ in range(tokens)]] * LAYERS
        scene.step(number, np.array(rows, dtype=np.int64))
    brain = scene.composition.brain(scene.belief)
    decisions = scene.conductor.decisions
    assert len(decisions) == len(scene.routings) == 40 * LAYERS
    for routing, decision in zip(scene.routings, decisions, strict=True):
        plan = brain.decide(routing, seen(decision, scene.slots))
        assert plan_words(plan) == decision.plan
        assert words_of(brain.look_ahead()) == decision.background
        active = sum(map(len, plan.queues.values()))
        times = (decision.report_start_ns, decision.report_end_ns)
        brain.learn(routing, LayerReport(routing.layer, *times, active, decision.hits, 0, 0))
    assert any(decision.background for decision in decisions)
    assert any(decision.flights for decision in decisions)
