"""Does the conductor's brain decide as the one that Python asks? Every layer of a conducted run is
decided again from what was recorded, by another brain of the same kind."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("moesaic.machines.cuda._conductor")

from pretended_gpu import EXPERTS, LAYERS, TOP_K, Scene

from conducted_run import assert_decided_again
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape


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
    kept = [decision._asdict() for decision in decisions]
    assert_decided_again(brain, scene.routings, kept, Shape(LAYERS, EXPERTS, TOP_K), scene.slots)
    assert any(decision.background for decision in decisions)
    assert any(decision.flights for decision in decisions)
