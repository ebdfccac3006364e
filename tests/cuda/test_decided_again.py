"""Does the conductor's brain decide as the one that Python asks? Every layer of a conducted run is
decided again from what was recorded, by another brain of the same kind."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("moesaic.machines.captured._conductor")

from pretended_gpu import EXPERTS, LAYERS, TOP_K, Scene

from conducted_run import assert_decided_again
from moesaic.machines.captured.conductor import Limits
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


def test_steps_of_many_tokens_do_not_look_ahead() -> None:
    """Nor does a brain that decides again; what it learned from the others is the same."""
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    limits = Limits(look_ahead_to=2)
    scene = Scene(policies, slots=9, tokens=4, copy_ns=2_000_000, limits=limits)
    rng = np.random.default_rng(3)
    for number in range(40):
        tokens = 1 + number % 4
        rows = [[rng.permutation(5)[:TOP_K] for _ in range(tokens)]] * LAYERS
        scene.step(number, np.array(rows, dtype=np.int64))
    kept = [decision._asdict() for decision in scene.conductor.decisions]
    assert_decided_again(
        scene.composition.brain(scene.belief), scene.routings, kept,
        Shape(LAYERS, EXPERTS, TOP_K), scene.slots, look_ahead_to=2,
    )  # fmt: skip
    looked = [len(routing.experts) for routing in scene.routings]
    moved = {tokens for tokens, each in zip(looked, kept, strict=True) if each["background"]}
    assert moved == {1, 2}


@pytest.mark.parametrize("forecasts", [0, 2])
@pytest.mark.parametrize("prefetch", ["impact", "next-layer"])
def test_rests_are_decided_again(prefetch: str, forecasts: int) -> None:
    """Of a brain that looks ahead in some steps only, with forecasts from the GPU and without."""
    policies = PolicySet.of(schedule="best-split", cache="two-speed", prefetch=prefetch)
    scene = Scene(policies, slots=9, copy_ns=2_000_000, forecasts=forecasts, cpu_slowed=100)
    scene.forecasts = min(forecasts, scene.brain.forecasts_used)
    rng, rested = np.random.default_rng(4), []
    for number in range(40):
        rows = [[rng.permutation(EXPERTS)[:TOP_K]]] * LAYERS
        scene.step(number, np.array(rows, dtype=np.int64))
        rested.append(bool(scene.brain.state.ahead.resting))
    assert any(rested)
    assert not all(rested)
    if scene.conductor.forecast_counts[1]:
        pytest.skip("a machine that was too busy: forecasts came too late")
    kept = [decision._asdict() for decision in scene.conductor.decisions]
    brain, shape = scene.composition.brain(scene.belief), Shape(LAYERS, EXPERTS, TOP_K)
    known = scene.forecast if scene.forecasts else ()
    assert_decided_again(brain, scene.routings, kept, shape, scene.slots, known)
    assert bool(brain.state.ahead.resting) == rested[-1]
