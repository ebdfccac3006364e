"""Does the conductor understand tokens that use fewer experts, and does it prefetch for tokens that
run again what a machine that is driven from Python would?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("moesaic.machines.captured._conductor")

from pretended_gpu import EXPERTS, LAYERS, TOP_K, Scene

from conducted_run import assert_decided_again
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.routing import LayerRouting
from moesaic.core.view import View
from moesaic.machines.captured.step_wants import StepWants
from moesaic.policies.brain import Brain
from moesaic.policies.fallback_prefetch import FallbackPrefetch
from moesaic.policies.gate.base import Gate
from moesaic.policies.gate.big_little import BigLittle
from moesaic.policies.gate.self_speculative import SelfSpeculative
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape

SYSTEMS = [
    ("hybrid", "mrs", "impact"),
    ("best-split", "two-speed", "next-layer"),
    ("gpu-only", "lru", "none"),
    ("static-experts", "pinned", "none"),
]
Pass = tuple[list[int], list[int]]  # of its tokens: their rows in passes before, how long ago


def scene_of(names: tuple[str, str, str], tokens: int, gate: str, forecasts: int = 0) -> Scene:
    """A copy is believed to be short beside the time between two layers, which is Python's."""
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2], gate=gate)
    scene = Scene(
        policies, slots=9, tokens=tokens, copy_ns=200_000, forecasts=forecasts, transfer_ns=5_000
    )
    scene.forecasts = min(scene.forecasts, scene.brain.forecasts_used)
    return scene


def random_choice(rng: np.random.Generator, tokens: int) -> np.ndarray:
    rows = [[rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)] for _ in range(LAYERS)]
    return np.array(rows, dtype=np.int64)


@pytest.mark.parametrize("names", SYSTEMS)
def test_unused_experts_are_computed_by_no_device(names: tuple[str, str, str]) -> None:
    """Every token has a count of its own; what is used is computed once, and nothing else is."""
    scene, rng, on_cpu = scene_of(names, 4, "little"), np.random.default_rng(5), 0
    for number in range(12):
        tokens = int(rng.integers(1, 5))
        chosen, counts = random_choice(rng, tokens), rng.integers(1, TOP_K + 1, tokens)
        scene.step(number, chosen, counts)
        for layer in range(LAYERS):
            at = number * LAYERS + layer
            ids, on_gpu = scene.routings[at].experts.ravel(), scene.on_gpu[at]
            used = {pair for pair, expert in enumerate(ids.tolist()) if expert >= 0}
            assert len(used) == counts.sum()
            left = used - on_gpu.keys()
            assert on_gpu.keys() <= used
            for pair in on_gpu:
                block = scene.store[layer * EXPERTS + int(ids[pair])].numpy().tobytes()
                assert on_gpu[pair] == block
            if left:
                assert scene.cpu.layers[on_cpu].keys() == {int(ids[pair]) for pair in left}
                given, total = scene.cpu.numbers[on_cpu]
                padded = len(used) < len(ids)
                assert total == EXPERTS + padded
                assert given == np.where(ids < 0, EXPERTS, ids).tolist()
                on_cpu += 1
            share = scene.shares[at]
            assert [pair for pair in range(len(ids)) if share[pair]] == sorted(on_gpu)
    assert on_cpu == len(scene.cpu.layers)


class Again:
    """The passes of a run, decided layer by layer in Python."""

    def __init__(self, brain: Brain, gate: Gate, passes: Sequence[Pass]) -> None:
        self.fallback, self._passes = FallbackPrefetch(brain, gate), iter(passes)
        self.wants_forecasts, self.look_ahead = (
            self.fallback.wants_forecasts, self.fallback.look_ahead,
        )  # fmt: skip
        self.learn = self.fallback.learn

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        if routing.layer == 0:
            self.fallback.begin(*next(self._passes))
        return self.fallback.decide(routing, view)


def conduct(scene: Scene, gate: Gate, passes: Sequence[tuple[Pass, np.ndarray]]) -> Again:
    """All passes; then the same again in Python, plan for plan."""
    fallback, rng = FallbackPrefetch(scene.brain, gate), np.random.default_rng(11)
    for number, ((rows, ages), counts) in enumerate(passes):
        fallback.begin(rows, ages)
        wants = StepWants(fallback, LAYERS, len(rows), TOP_K)
        scene.step(number, random_choice(rng, len(rows)), counts, wants)
    again = Again(scene.composition.brain(scene.belief), gate, [each for each, _ in passes])
    shape, kept = Shape(LAYERS, EXPERTS, TOP_K), scene.conductor.decisions
    decisions = [decision._asdict() for decision in kept]
    if scene.conductor.forecast_counts[1]:
        pytest.skip("a machine that was too busy: forecasts came too late")
    assert_decided_again(
        again, scene.routings, decisions, shape, scene.slots,  # type: ignore[arg-type]
        scene.forecast if scene.forecasts else (),
    )  # fmt: skip
    mine, other = fallback, again.fallback
    assert (mine.right, mine.judged) == (other.right, other.judged)
    for layer in range(LAYERS):
        assert np.array_equal(mine._now[layer].ranked, other._now[layer].ranked)
        assert np.array_equal(mine._now[layer].scores, other._now[layer].scores)
    return again


def fallbacks(rng: np.random.Generator, tokens: int, passes: int) -> list[tuple[Pass, np.ndarray]]:
    """A batch in which some sequences fall back, in another order than they stood in before."""
    found, before, little = [], [-1] * tokens, [False] * tokens
    for number in range(passes):
        order = rng.permutation(tokens)[: rng.integers(1, tokens + 1)].tolist()
        rows = [-1] * len(order)
        for row, sequence in enumerate(order):
            if little[sequence] and rng.random() < 0.6:
                rows[row] = before[sequence]
        counts = np.where(np.array(rows) < 0, 1, TOP_K).astype(np.int64)
        for sequence in range(tokens):
            little[sequence] = False
        for row, sequence in enumerate(order):
            before[sequence], little[sequence] = row, rows[row] < 0
        if number == 0:
            counts[:] = TOP_K  # a prompt, say
        found.append(((rows, [1] * len(rows)), counts))
    return found


@pytest.mark.parametrize("forecasts", [0, 2])
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("names", SYSTEMS)
def test_what_fell_back_is_prefetched_as_layer_by_layer(
    names: tuple[str, str, str], tokens: int, forecasts: int
) -> None:
    scene = scene_of(names, tokens, "big-little", forecasts)
    passes = fallbacks(np.random.default_rng(tokens), tokens, 40)
    again = conduct(scene, BigLittle(TOP_K, k=1), passes)
    assert again.fallback.judged > 0
    moved = any(each.background for each in scene.conductor.decisions)
    assert moved == (names[1] != "pinned")


@pytest.mark.parametrize("forecasts", [0, 2])
@pytest.mark.parametrize("names", SYSTEMS)
def test_drafts_are_checked_as_layer_by_layer(names: tuple[str, str, str], forecasts: int) -> None:
    """Two sequences with drafts of one to three passes; a check has a row of each, and one more.
    The other sequence drafts beside it or is checked, too."""
    scene, rng = scene_of(names, 8, "self-speculative", forecasts), np.random.default_rng(6)
    drafted: list[list[tuple[int, int]]] = [[], []]
    passes: list[tuple[Pass, np.ndarray]] = []
    for number in range(40):
        rows, ages, counts = [], [], []
        for mine in drafted:
            if len(mine) == 3 or (mine and rng.random() < 0.3):
                rows += [*(row for _, row in mine), -1]
                ages += [*(number - at for at, _ in mine), 1]
                counts += [TOP_K] * (len(mine) + 1)
                mine.clear()
            else:
                mine.append((number, len(rows)))
                rows, ages, counts = [*rows, -1], [*ages, 1], [*counts, 1]
        passes.append(((rows, ages), np.array(counts, dtype=np.int64)))
    again = conduct(scene, SelfSpeculative(TOP_K, draft=3, k=1), passes)
    assert again.fallback.judged > 0


def test_wants_that_were_never_right_are_still_known() -> None:
    """A trust of nothing would say that they were not judged."""
    scene = scene_of(("hybrid", "mrs", "impact"), 1, "big-little")
    fallback = FallbackPrefetch(scene.brain, BigLittle(TOP_K, k=1, distance=2))
    for number in range(2):
        fallback.begin([-1] if number == 0 else [0])
        chosen = np.full((LAYERS, 1, TOP_K), [[2 * number, 2 * number + 1]], dtype=np.int64)
        scene.step(number, chosen, None, StepWants(fallback, LAYERS, 1, TOP_K))
    assert (fallback.right, fallback.judged) == (0, LAYERS * TOP_K)
    again = Again(scene.composition.brain(scene.belief), BigLittle(TOP_K, k=1, distance=2), [])
    again._passes = iter([([-1], [1]), ([0], [1])])
    decisions = [decision._asdict() for decision in scene.conductor.decisions]
    shape = Shape(LAYERS, EXPERTS, TOP_K)
    assert_decided_again(again, scene.routings, decisions, shape, scene.slots)  # type: ignore[arg-type]
