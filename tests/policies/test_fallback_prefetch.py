"""Is what an evicted pass wanted handed to the brain for the pass that runs its tokens again?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from made_up import exact_belief, make_brain, small_model, stated_physics
from moesaic.core.layer_plan import Move
from moesaic.core.rerun_decider import PassWants
from moesaic.core.routing import UNUSED, Forecast, LayerRouting, cut
from moesaic.core.view import offloading_view
from moesaic.policies.fallback_prefetch import FallbackPrefetch
from moesaic.policies.gate.big_little import BigLittle
from moesaic.policies.gate.self_speculative import SelfSpeculative

LAYERS, EXPERTS, K = 4, 12, 4


@dataclass
class Listening:
    """A brain that notes the forecasts it is given."""

    wanted: int = 3
    belief: Any = field(default_factory=lambda: type("B", (), {"transfer_ns": 10}))
    layer_ns: int = 1000
    given: list[tuple[int, tuple[Forecast, ...], bool]] = field(default_factory=list)
    learned: list[tuple[object, ...]] = field(default_factory=list)

    def decide(self, routing: LayerRouting, view: object) -> None:
        self._layer = routing.layer

    def wants_forecasts(self) -> int:
        return self.wanted

    def look_ahead(
        self, forecasts: Sequence[Forecast] = (), body_forecasts: bool = True
    ) -> tuple[()]:
        self.given.append((self._layer, tuple(forecasts), body_forecasts))
        return ()

    def learn(self, *what: object) -> None:
        self.learned.append(what)


def routing(layer: int, rows: list[list[int]], step: int, used: int = K) -> LayerRouting:
    ranked = np.array(rows)
    scores = np.linspace(0.5, 0.1, ranked.shape[1], dtype=np.float32)[None].repeat(len(rows), 0)
    whole = LayerRouting(layer, ranked[:, :K], scores[:, :K], ranked, scores, step=step)
    return whole if used == K else cut(whole, np.full(len(rows), used))


def drawn(seed: int) -> list[list[list[int]]]:
    """[layer][token][rank]"""
    random = np.random.default_rng(seed)
    return [[random.permutation(EXPERTS).tolist() for _ in range(3)] for _ in range(LAYERS)]


def play(
    prefetch: FallbackPrefetch, rows: list[list[list[int]]], step: int, sources: list[int]
) -> None:
    prefetch.begin(sources)
    for layer, tokens in enumerate(rows):
        used = K if max(sources) >= 0 else K // 2
        prefetch.decide(routing(layer, tokens[: len(sources)], step, used), None)  # type: ignore[arg-type]
        prefetch.look_ahead()


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_all_wanted_ranks_are_forecast_by_step_and_layer(distance: int) -> None:
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=distance))  # type: ignore[arg-type]
    little, big = drawn(1), drawn(2)
    play(prefetch, little, 6, [-1])
    assert [forecasts for _, forecasts, _ in brain.given] == [()] * LAYERS, "nothing ran before"
    brain.given.clear()
    play(prefetch, big, 7, [0])
    for layer, forecasts, body_forecasts in brain.given:
        later = list(range(layer + 1, min(layer + 1 + distance, LAYERS)))
        assert [(each.step, each.layer) for each in forecasts] == [(7, at) for at in later]
        for each in forecasts:
            assert each.ranked.tolist() == [little[each.layer][0][:K]], "not only those it used"
            assert each.trust is not None
        assert not body_forecasts, "the brain goes on learning to predict"


def test_rows_follow_their_sequences_into_another_pass() -> None:
    """Sequences 2 and 0 run again, in this order, with a new token between them."""
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=1))  # type: ignore[arg-type]
    little = drawn(3)
    play(prefetch, little, 0, [-1, -1, -1])
    brain.given.clear()
    play(prefetch, drawn(4), 1, [2, -1, 0])
    (_, (first,), _), *_ = brain.given
    assert first.ranked[[0, 2]].tolist() == [little[1][2][:K], little[1][0][:K]]
    assert first.ranked[1].tolist() == [UNUSED] * K, "nothing is known of the new token"
    assert first.trust is None, "the brain judges a mixture"
    assert first.scores.dtype == np.float32, "compiled code takes no other"


def test_every_draft_has_the_wants_of_its_own_pass() -> None:
    """Two drafts in two passes, rows 1 and 0 there; the check runs both again."""
    brain = Listening()
    prefetch = FallbackPrefetch(brain, SelfSpeculative(K, draft=2))  # type: ignore[arg-type]
    first, second = drawn(5), drawn(6)
    play(prefetch, first, 0, [-1, -1])
    play(prefetch, second, 1, [-1, -1])
    brain.given.clear()
    prefetch.begin([1, 0, -1], [2, 1, 1])
    prefetch.decide(routing(0, drawn(7)[0], 2), None)  # type: ignore[arg-type]
    prefetch.look_ahead()
    ((_, forecasts, _),) = brain.given
    for each in forecasts:
        wanted = [first[each.layer][1][:K], second[each.layer][0][:K]]
        assert each.ranked[:2].tolist() == wanted
    assert forecasts


def test_accuracy_is_of_experts_that_were_used() -> None:
    """A second attempt with two of four experts, both wanted: nothing else was to be predicted."""
    prefetch = FallbackPrefetch(Listening(), BigLittle(K))  # type: ignore[arg-type]
    rows = [[list(range(EXPERTS))]]
    play(prefetch, rows, 0, [-1])
    prefetch.begin([0])
    prefetch.decide(routing(0, rows[0], 1, used=2), None)  # type: ignore[arg-type]
    assert (prefetch.right, prefetch.judged, prefetch.accuracy) == (2, 2, 1.0)


def test_a_check_is_trusted_though_its_last_draft_is_new() -> None:
    """Where drafts and their check are one text, the mixture is known: all but one token."""
    brain = Listening()
    prefetch = FallbackPrefetch(brain, SelfSpeculative(K, draft=2))  # type: ignore[arg-type]
    little = drawn(3)
    play(prefetch, little, 0, [-1])
    play(prefetch, little, 1, [-1])
    brain.given.clear()
    prefetch.begin([0, 0, -1], [2, 1, 1])
    prefetch.decide(routing(0, little[0], 2), None)  # type: ignore[arg-type]
    prefetch.look_ahead()
    ((_, (first, *_), _),) = brain.given
    assert prefetch.accuracy is not None
    assert first.trust == prefetch.accuracy


def test_the_bodys_forecasts_stay_where_nothing_better_is_known() -> None:
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=1))  # type: ignore[arg-type]
    little = drawn(5)
    play(prefetch, little, 0, [-1, -1])
    prefetch.begin([-1, 1])
    prefetch.decide(routing(0, drawn(6)[0][:2], 1), None)  # type: ignore[arg-type]
    assert prefetch.wants_forecasts() == 3, "the new token is the body's to forecast"
    body = [Forecast(at, np.full((2, 8), at), np.ones((2, 8), np.float32), 1) for at in (1, 2)]
    brain.given.clear()
    prefetch.look_ahead(body)
    ((_, (near, far), body_forecasts),) = brain.given
    assert near.ranked.tolist() == [[1] * K, little[1][1][:K]]
    assert near.scores.tolist()[0] == [1.0] * K, "as the body forecast them"
    assert near.scores[1] == pytest.approx(np.linspace(0.5, 0.1, EXPERTS)[:K])
    assert near.scores.dtype == np.float32
    assert far is body[1], "beyond the distance"
    assert body_forecasts


def test_a_pass_of_new_tokens_is_left_to_the_body() -> None:
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=1))  # type: ignore[arg-type]
    play(prefetch, drawn(5), 0, [-1])
    prefetch.begin([-1, -1])
    prefetch.decide(routing(0, drawn(6)[0][:2], 1), None)  # type: ignore[arg-type]
    assert prefetch.wants_forecasts() == 3
    body = Forecast(1, np.full((2, 8), 4), np.ones((2, 8), np.float32), 1)
    brain.given.clear()
    prefetch.look_ahead([body])
    ((_, (given,), body_forecasts),) = brain.given
    assert given is body
    assert body_forecasts


@pytest.mark.parametrize(
    ("layer_ns", "transfer_ns", "distance"), [(1000, 10, 1), (100, 90, 2), (10, 1000, 3)]
)
def test_the_distance_follows_from_the_times_of_a_layer_and_of_a_move(
    layer_ns: int, transfer_ns: int, distance: int
) -> None:
    """The little pass left two of four experts out."""
    brain = Listening(belief=type("B", (), {"transfer_ns": transfer_ns}), layer_ns=layer_ns)
    prefetch = FallbackPrefetch(brain, BigLittle(K))  # type: ignore[arg-type]
    play(prefetch, drawn(1), 0, [-1])
    brain.given.clear()
    play(prefetch, drawn(2), 1, [0])
    assert [forecast.layer for forecast in brain.given[0][1]] == list(range(1, 1 + distance))


def test_forecasts_are_trusted_as_far_as_they_came_true() -> None:
    """Layer 0 uses three of the four that were wanted, layer 1 none of them."""
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=1))  # type: ignore[arg-type]
    play(prefetch, [[[0, 1, 2, 3, 4]]] * LAYERS, 0, [-1])
    brain.given.clear()
    play(prefetch, [[[3, 2, 1, 9]], [[8, 7, 6, 5]], *[[[0, 1, 2, 3]]] * 2], 1, [0])
    assert [forecasts[0].trust for _, forecasts, _ in brain.given[:-1]] == [3 / 4, 3 / 8, 7 / 12]


def test_what_is_learned_goes_on_to_the_brain() -> None:
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K))  # type: ignore[arg-type]
    ran, report = routing(0, drawn(1)[0][:1], 0), object()
    prefetch.learn(ran, report)  # type: ignore[arg-type]
    ((first, second),) = brain.learned
    assert first is ran
    assert second is report


def test_the_body_is_not_asked_where_everything_is_known() -> None:
    prefetch = FallbackPrefetch(Listening(), BigLittle(K))  # type: ignore[arg-type]
    play(prefetch, drawn(7), 0, [-1])
    prefetch.begin([0])
    prefetch.decide(routing(0, drawn(8)[0][:1], 1), None)  # type: ignore[arg-type]
    assert prefetch.wants_forecasts() == 0


def test_accuracy_counts_the_experts_that_were_predicted() -> None:
    prefetch = FallbackPrefetch(Listening(), BigLittle(K))  # type: ignore[arg-type]
    assert prefetch.accuracy is None
    same = [[[0, 1, 2, 3, 4]]] * LAYERS
    play(prefetch, same, 0, [-1])
    assert prefetch.accuracy is None, "nothing ran again"
    play(prefetch, [[[3, 2, 1, 9, 0]]] * LAYERS, 1, [0])
    accuracies = [prefetch.accuracy]
    play(prefetch, same, 2, [-1])
    accuracies.append(prefetch.accuracy)
    assert accuracies == [3 / 4, 3 / 4]


def fetched(prefetch_policy: str, again: bool) -> list[Move]:
    """Moves offered in the first layers of a second pass, by a brain that has room for them."""
    model = small_model(LAYERS, EXPERTS, K)
    physics = stated_physics(lambda t: 500, lambda t: 50_000 * t, transfer=100, model=model)
    brain = make_brain(
        model,
        exact_belief(physics),
        4 * LAYERS,
        prefetch=prefetch_policy,
        promote=False,
        gate="big-little",
    )
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=1))
    view = offloading_view(np.zeros((LAYERS, EXPERTS), dtype=np.uint8), 4 * LAYERS)
    moves: list[Move] = []
    for step, sources in ((0, [-1]), (1, [0] if again else [-1])):
        prefetch.begin(sources)
        for layer in range(LAYERS - 1):
            used = K if sources == [0] else K // 2
            moved = routing(layer, [[layer, 5, 7, 9, 2]], step, used)
            prefetch.decide(moved, view)
            if step:
                moves += prefetch.look_ahead()
            else:
                brain.look_ahead()
    return moves


def test_a_policy_that_prefetches_nothing_brings_what_runs_again_wants() -> None:
    assert not fetched("none", again=False)
    moves = fetched("none", again=True)
    assert {(move.layer, move.expert) for move in moves} <= {
        (layer, expert) for layer in range(1, LAYERS) for expert in (layer, 5, 7, 9)
    }
    assert {move.layer for move in moves} == {1, 2}
    assert {move.expert for move in moves} >= {7, 9}, "ranks that the little pass did not use"


@pytest.mark.parametrize("ages", [[2], [5]])
def test_of_a_pass_that_is_long_past_nothing_is_known(ages: list[int]) -> None:
    """Sequences that take turns: others ran between a token and its second attempt."""
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=1))  # type: ignore[arg-type]
    for step in range(2):
        play(prefetch, drawn(1 + step), step, [-1])
    prefetch.begin([0], ages)
    assert prefetch.known() is None
    prefetch.decide(routing(0, drawn(3)[0][:1], 2), None)  # type: ignore[arg-type]
    assert (prefetch.judged, prefetch.accuracy) == (0, None)


def test_of_a_pass_that_was_given_up_nothing_is_known() -> None:
    brain = Listening()
    prefetch = FallbackPrefetch(brain, BigLittle(K, distance=1))  # type: ignore[arg-type]
    play(prefetch, drawn(1), 0, [-1])
    play(prefetch, drawn(2)[:2], 1, [-1])
    prefetch.begin([0])
    for layer, tokens in enumerate(drawn(3)):
        prefetch.decide(routing(layer, tokens[:1], 2), None)  # type: ignore[arg-type]
    assert prefetch.judged == 0


@pytest.mark.parametrize("rows", [[2, -1, 0], [1], [0, 1, 2]])
def test_a_pass_in_one_go_knows_and_leaves_what_it_would_layer_by_layer(rows: list[int]) -> None:
    layerwise, at_once = (
        FallbackPrefetch(Listening(), BigLittle(K, distance=2))  # type: ignore[arg-type]
        for _ in range(2)
    )
    before, after = drawn(5), drawn(6)
    play(layerwise, before, 0, [-1, -1, -1])
    at_once.begin([-1, -1, -1])
    ranked = np.array(before)[:, :, :K]
    scores = np.linspace(0.5, 0.1, EXPERTS, dtype=np.float32)[:K]
    at_once.note_pass(PassWants(ranked, np.broadcast_to(scores, ranked.shape)), 0, 0)
    at_once.begin(rows)
    known = at_once.known()
    assert known is not None
    assert (known.distance, known.whole, known.trusted) == (2, -1 not in rows, False)
    for token, row in enumerate(rows):
        wanted = [[UNUSED] * K] * LAYERS if row < 0 else ranked[:, row].tolist()
        assert known.wants.ranked[:, token].tolist() == wanted
    for prefetch in (layerwise, at_once):
        if prefetch is layerwise:
            prefetch.begin(rows)
        for layer, tokens in enumerate(after):
            prefetch.decide(routing(layer, tokens[: len(rows)], 1), None)  # type: ignore[arg-type]
    assert (layerwise.right, layerwise.judged) == (at_once.right, at_once.judged)
    assert at_once.judged == K * LAYERS * sum(row >= 0 for row in rows)
