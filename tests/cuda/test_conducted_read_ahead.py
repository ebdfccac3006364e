"""Does the conductor have CPU workers read ahead what the next layer may want of them?"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("moesaic.machines.captured._conductor")

from pretended_gpu import BLOCK, EXPERTS, LAYERS, TOP_K, Scene

from moesaic.machines.captured.step_wants import StepWants
from moesaic.policies.fallback_prefetch import FallbackPrefetch
from moesaic.policies.gate.big_little import BigLittle
from moesaic.policies.policy_set import PolicySet

SLOTS = 6  # two experts of each layer
SAME = np.array([[[4, 5]], [[6, 7]], [[2, 3]]], dtype=np.int64)  # [layers, tokens, top-k]


def scene_of(prefetch: str = "impact", forecasts: int = 0, tokens: int = 1) -> Scene:
    """A cache that keeps what it has: the schedule computes what is missing on the CPU."""
    policies = PolicySet.of(schedule="static-experts", cache="lfu", prefetch=prefetch)
    scene = Scene(policies, SLOTS, tokens, forecasts=forecasts, transfer_ns=10_000_000_000)
    scene.forecasts = min(scene.forecasts, scene.brain.forecasts_used)
    return scene


def read(scene: Scene) -> list[list[tuple[int, int]]]:
    """By call: layer and expert of the blocks."""
    first = scene.store.data_ptr()
    return [
        [divmod((block - first) // BLOCK, EXPERTS) for block in blocks]
        for blocks in scene.cpu.read_ahead
    ]


def test_what_was_learnt_is_read_before_it_is_wanted() -> None:
    """Three tokens in turn, whose experts do not all fit: each layer's follow from the one
    before."""
    scene, known = scene_of(), []
    for number in range(24):
        scene.cpu.read_ahead.clear()
        scene.step(number, (SAME + 2 * (number % 3)) % EXPERTS)
        ahead = dict(at for blocks in read(scene) for at in [(blocks[0][0], blocks)])
        assert set(ahead) <= {1, 2}  # of every layer but the first
        assert max(map(len, ahead.values()), default=0) <= 4
        for layer, work in enumerate(scene.conductor.work):
            known += [(number, (layer, e) in ahead.get(layer, ())) for e in work.cpu if layer]
    assert all(read_ahead for number, read_ahead in known if number >= 12)
    assert len([number for number, _ in known if number >= 12]) > 12
    assert scene.cpu.some > 0  # the conductor reads its own part
    computed, read_ahead = scene.conductor.read_ahead_counts
    assert computed == sum(len(layer) for layer in scene.cpu.layers)
    assert read_ahead == sum(right for _, right in known)


def test_gate_forecasts_are_read_once_they_are_written() -> None:
    scene = scene_of(forecasts=2)
    scene.step(0, SAME)
    assert read(scene) == [[(1, 6), (1, 7)], [(2, 2), (2, 3)]]
    assert scene.conductor.read_ahead_counts == (6, 4)


def test_what_a_token_wanted_before_is_read_when_it_runs_again() -> None:
    scene = scene_of()  # the brain would name four experts
    fallback = FallbackPrefetch(scene.brain, BigLittle(TOP_K, k=1, distance=2))
    for number, row in enumerate((-1, 0)):
        scene.cpu.read_ahead.clear()
        fallback.begin([row])
        scene.step(number, SAME, None, StepWants(fallback, LAYERS, 1, TOP_K))
    calls = read(scene)
    assert [blocks[0][0] for blocks in calls] == [1, 2]
    for blocks in calls:  # all wanted, but for what the GPU has by now
        assert {expert for _, expert in blocks} <= set(SAME[blocks[0][0], 0].tolist())


@pytest.mark.parametrize("late", [True, False])
def test_gates_that_come_late_or_say_nothing_are_not_waited_for(late: bool) -> None:
    scene = scene_of(forecasts=2)
    scene.forecasts_come = not late
    say = scene._forecast_later

    def no_numbers(layer: int, chosen: np.ndarray) -> None:
        say(layer, np.full_like(chosen, EXPERTS))

    if not late:
        scene._forecast_later = no_numbers  # type: ignore[method-assign]
    scene.step(0, SAME)
    assert read(scene) == []
    assert len(scene.cpu.layers) == LAYERS


def test_what_the_gpu_has_is_not_read() -> None:
    scene = scene_of(forecasts=2)
    there = np.array([[[4, 5]], [[0, 7]], [[0, 1]]], dtype=np.int64)
    scene.step(0, there)
    assert read(scene) == [[(1, 7)]]


@pytest.mark.parametrize(
    ("prefetch", "tokens"), [("impact:read_ahead=0", 1), ("none", 1), ("impact", 2)]
)
def test_who_does_not_ask_leaves_caches_alone(prefetch: str, tokens: int) -> None:
    scene = scene_of(prefetch, forecasts=2, tokens=tokens)
    for number in range(3):
        scene.step(number, SAME.repeat(tokens, axis=1))
    assert read(scene) == []


def test_where_the_cpu_computes_nothing_nothing_is_read_any_more() -> None:
    policies = PolicySet.of(schedule="gpu-only", cache="lru", prefetch="impact")
    scene = Scene(policies, SLOTS)
    for number in range(100):
        scene.step(number, (SAME + 2 * (number % 3)) % EXPERTS)
        if number == 86:
            assert read(scene)
            scene.cpu.read_ahead.clear()
    assert read(scene) == []


def test_what_the_token_will_not_use_is_not_read() -> None:
    scene = scene_of(forecasts=2)
    scene.step(0, SAME, np.array([1]))
    assert read(scene) == [[(1, 6)], [(2, 2)]]


def test_a_failing_worker_is_an_error() -> None:
    scene = scene_of(forecasts=2)
    scene.cpu.fails_ahead = True
    with pytest.raises(RuntimeError, match="a worker has died"):
        scene.step(0, SAME)
