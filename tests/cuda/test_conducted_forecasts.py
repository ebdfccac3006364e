"""Does the conductor give the brain what the gates of later layers say, as a machine that is driven
from Python would?"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("moesaic.machines.captured._conductor")

from pretended_gpu import EXPERTS, LAYERS, TOP_K, Scene

from conducted_run import assert_decided_again
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.machines.captured.conductor import ForecastSource
from moesaic.machines.captured.mailbox import Mailbox, MailboxShape
from moesaic.machines.captured.recorded_forecasts import write_recorded
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape

SYSTEMS = [
    ("hybrid", "mrs", "impact"),
    ("best-split", "two-speed", "impact"),
    ("best-split", "lru", "next-layer"),
    ("gpu-only", "lfu", "none"),
    ("static-experts", "pinned", "none"),
]


def random_steps(scene: Scene, steps: int, tokens: int = 1) -> None:
    rng = np.random.default_rng(3)
    for number in range(steps):
        rows = [[rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)] for _ in range(LAYERS)]
        scene.step(number, np.array(rows, dtype=np.int64))


def conducted(names: tuple[str, str, str], tokens: int = 1, copy_ns: int = 2_000_000) -> Scene:
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2])
    scene = Scene(policies, slots=9, tokens=tokens, copy_ns=copy_ns, forecasts=2)
    scene.forecasts = min(scene.forecasts, scene.brain.forecasts_used)
    return scene


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("names", SYSTEMS)
def test_every_decision_is_made_again_with_the_same_forecasts(
    names: tuple[str, str, str], tokens: int
) -> None:
    scene = conducted(names, tokens)
    random_steps(scene, 40, tokens)
    brain, shape = scene.composition.brain(scene.belief), Shape(LAYERS, EXPERTS, TOP_K)
    decisions = [decision._asdict() for decision in scene.conductor.decisions]
    in_time, late = scene.conductor.forecast_counts
    assert bool(in_time) == (names[2] != "none")
    if not late:  # else the brain was not asked, on a machine that was too busy
        assert_decided_again(brain, scene.routings, decisions, shape, scene.slots, scene.forecast)
        assert brain.trust == scene.brain.trust
    if names[2] == "impact":
        assert scene.brain.trust[0] > 0.99  # and the brain has judged them


def test_what_is_forecast_is_there_when_it_is_routed() -> None:
    """Uniform choices, of which nothing can be learned: only who is told brings the right ones."""
    told, untold = (conducted(("hybrid", "lru", "next-layer"), copy_ns=1_000) for _ in range(2))
    untold.forecasts = 0
    moved = []
    for scene in (told, untold):
        random_steps(scene, 60)
        later = [
            (d.background[i], d.background[i + 1], number)
            for number, d in enumerate(scene.conductor.decisions)
            for i in range(0, len(d.background), 5)
            if d.background[i] == number % LAYERS + 1
        ]
        right = [expert in scene.routings[at + 1].experts[0] for _, expert, at in later]
        moved.append((sum(right), len(right)))
    assert moved[0][0] == moved[0][1] > 0
    assert moved[1][0] < moved[1][1]


def test_missing_forecasts_move_nothing_and_delay_no_step() -> None:
    scene = conducted(("hybrid", "mrs", "impact"))
    scene.forecasts_come = False
    random_steps(scene, 40)
    in_time, late = scene.conductor.forecast_counts
    assert in_time == 0
    assert late > 0
    for number, decision in enumerate(scene.conductor.decisions):
        if number % LAYERS < LAYERS - 1:
            assert not decision.background


def test_a_forecast_that_is_no_expert_says_nothing() -> None:
    """Gates whose scores are not numbers."""
    scene = conducted(("hybrid", "mrs", "impact"))
    before = scene._forecast_later

    def broken(layer: int, chosen: np.ndarray) -> None:
        before(layer, np.full_like(chosen, EXPERTS))

    scene._forecast_later = broken  # type: ignore[method-assign]
    random_steps(scene, 20)
    assert all(
        0 <= d.background[i + 1] < EXPERTS
        for d in scene.conductor.decisions
        for i in range(0, len(d.background), 5)
    )


@pytest.mark.parametrize("ranks", [1, 4])
def test_recorded_forecasts_are_written_for_the_whole_step(ranks: int) -> None:
    box = Mailbox(MailboxShape(4, 8, TOP_K, EXPERTS, EXPERTS, LAYERS, 2), pinned=False)
    rng = np.random.default_rng(1)

    def forecast(layer: int) -> Forecast:
        ranked = np.array([rng.permutation(EXPERTS)[:ranks] for _ in range(3)])
        return Forecast(layer, ranked, rng.random((3, ranks)).astype(np.float32))

    ids, weights = np.zeros((3, TOP_K), dtype=np.int64), np.zeros((3, TOP_K), dtype=np.float32)
    routings = [
        LayerRouting(
            at,
            ids,
            weights,
            ids,
            weights,
            tuple(forecast(later) for later in range(at + 1, LAYERS)),
        )
        for at in range(LAYERS)
    ]
    assert write_recorded(box, routings, 0) == ForecastSource()
    assert write_recorded(box, routings[-1:], 2) == ForecastSource()
    assert write_recorded(box, routings, 2) == ForecastSource(2, recorded=True)
    used = min(ranks, TOP_K)
    for routing in routings:
        for d, each in enumerate(routing.forecasts):
            there = box["forecast_ids"].numpy()[routing.layer, d, :3]
            assert (there[:, :used] == each.ranked[:, :used]).all()
            assert (there[:, used:] == -1).all()
            scores = box["forecast_scores"].numpy()[routing.layer, d, :3, :used]
            assert (scores == each.scores[:, :used]).all()
