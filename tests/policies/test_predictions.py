"""Are predictions the naive Bayes that is stated, and are mixtures of tokens told apart?"""

from __future__ import annotations

import numpy as np
import pytest
from brain_parts import state_of

from moesaic.core.routing import UNUSED
from moesaic.policies.brain import forecasts
from moesaic.policies.brain.decide import fill_routing
from moesaic.policies.records import State
from moesaic.policies.timelines import Ints

LAYERS, EXPERTS, TOP_K, AHEAD = 5, 7, 3, 2


def made() -> State:
    state = state_of(LAYERS, EXPERTS, AHEAD)
    state.setup.top_k = TOP_K
    return state


def routed(state: State, step: int, layer: int, chosen: Ints) -> None:
    scores = np.ones(chosen.shape, dtype=np.float32)
    fill_routing(state.inputs, step, layer, chosen, np.where(chosen < 0, 0, chosen), scores)


class Bayes:
    """The same in the plainest way: every pass in full, counted anew for each question."""

    def __init__(self) -> None:
        self.passes: list[list[Ints]] = []

    def uses(self, layer: int, expert: int) -> int:
        return sum(int((each[layer] == expert).sum()) for each in self.passes if layer < len(each))

    def pairs(self, distance: int, layer: int, before: int, now: int) -> int:
        found = 0
        for each in self.passes:
            if layer >= len(each) or len(each[layer - distance]) != len(each[layer]):
                continue  # other tokens
            for earlier, later in zip(each[layer - distance], each[layer], strict=True):
                found += int((earlier == before).sum() * (later == now).sum())
        return found

    def predict(self, distance: int, layer: int, chosen: list[int]) -> tuple[list[int], Ints]:
        likely = np.array([self.uses(layer, b) + 1.0 for b in range(EXPERTS)])
        for a in chosen:
            if a >= 0:
                seen = np.array([self.pairs(distance, layer, a, b) for b in range(EXPERTS)])
                every = np.array([self.uses(layer, b) for b in range(EXPERTS)])
                likely *= (seen + 0.1) / (every + 0.1 * EXPERTS)
        best = np.argsort(-likely, kind="stable")[:TOP_K]
        return best.tolist(), (likely / likely.sum())[best].astype(np.float32)


def drawn(rng: np.random.Generator, tokens: int, ranks: int) -> Ints:
    """Some tokens use fewer than `ranks`."""
    rows = np.stack([rng.permutation(EXPERTS)[:ranks] for _ in range(tokens)])
    unused = np.arange(ranks) >= rng.integers(1, ranks + 1, (tokens, 1))
    return np.where(unused, UNUSED, rows).astype(np.int64)


def observed(seed: int, passes: int = 12) -> tuple[State, Bayes, list[Ints], int]:
    """After some passes, one of them with other tokens from layer 2 on, and the first layers of
    one more: the last layer's routing and the pass it is of."""
    rng, state, bayes = np.random.default_rng(seed), made(), Bayes()
    for step in range(passes):
        tokens, last = int(rng.integers(1, 4)), LAYERS if step < passes - 1 else 2
        bayes.passes.append([])
        for layer in range(last):
            if step == 3 and layer == 2:
                tokens += 1
            chosen = drawn(rng, tokens, TOP_K - (step % 4 == 1))
            bayes.passes[-1].append(chosen)
            routed(state, step, layer, chosen)
            forecasts.observe_routing(state)
    return state, bayes, bayes.passes[-1], passes - 1


def forecast_rows(state: State, number: int, tokens: int) -> tuple[Ints, np.ndarray]:
    ids = state.forecasts.ids[number, : tokens * TOP_K].reshape(tokens, TOP_K)
    scores = state.forecasts.scores[number, : tokens * TOP_K].reshape(tokens, TOP_K)
    return ids.astype(np.int64), scores.astype(np.float32)


@pytest.mark.parametrize("seed", range(6))
def test_predictions_are_naive_bayes_over_all_passes(seed: int) -> None:
    state, bayes, layers, step = observed(seed)
    chosen = layers[-1]
    assert forecasts.predict(state.setup, state.inputs, state.forecasts, state.predictor) == AHEAD
    for distance in (1, 2):
        layer = len(layers) - 1 + distance
        shape = state.forecasts.shapes[distance - 1].tolist()
        assert shape == [layer, len(chosen), TOP_K]
        assert state.forecasts.steps[distance - 1] == step
        ids, scores = forecast_rows(state, distance - 1, len(chosen))
        for token, used in enumerate(chosen.tolist()):
            likeliest, likelihood = bayes.predict(distance, layer, used)
            assert ids[token].tolist() == likeliest
            assert scores[token] == pytest.approx(likelihood, rel=1e-6)


def give(state: State, step: int, layer: int, rows: list[list[int]]) -> None:
    ranked = np.array(rows, dtype=np.int64)
    scores = np.full(ranked.shape, 0.25, dtype=np.float32)
    forecasts.fill_forecast(state.setup, state.inputs, state.forecasts, step, layer, ranked, scores)


def three_tokens() -> tuple[State, Bayes, Ints, int]:
    """Layer 1 of a pass of three tokens was routed; the second token uses one expert."""
    state, bayes, _, last = observed(1)
    rows = [np.array([[0, 1, 2], [3, UNUSED, UNUSED], [4, 5, 6]])] * 2
    for layer in range(2):
        routed(state, last + 1, layer, rows[layer])
    state.forecasts.count = 0
    return state, bayes, rows[1], last + 1


def test_tokens_without_a_forecast_are_predicted_and_others_kept() -> None:
    state, bayes, chosen, step = three_tokens()
    nothing = [UNUSED] * TOP_K
    give(state, step, 2, [nothing, [6, 5, 4], nothing])
    give(state, step, 3, [nothing, nothing, [1, 2, 3]])
    forecasts.complete(state.setup, state.inputs, state.forecasts, state.predictor)
    for number, (layer, missing) in enumerate([(2, (0, 2)), (3, (0, 1))]):
        ids, scores = forecast_rows(state, number, 3)
        for token in range(3):
            if token in missing:
                likeliest, likelihood = bayes.predict(layer - 1, layer, chosen[token].tolist())
                assert ids[token].tolist() == likeliest
                assert scores[token] == pytest.approx(likelihood, rel=1e-6)
            else:
                assert scores[token].tolist() == [0.25] * TOP_K
    assert forecast_rows(state, 0, 3)[0][1].tolist() == [6, 5, 4]
    assert forecast_rows(state, 1, 3)[0][2].tolist() == [1, 2, 3]


def test_forecasts_of_another_pass_or_of_other_tokens_are_not_completed() -> None:
    nothing = [UNUSED] * TOP_K
    state, _, _, step = three_tokens()
    give(state, step, 2, [nothing] * 2)
    forecasts.complete(state.setup, state.inputs, state.forecasts, state.predictor)
    assert forecast_rows(state, 0, 2)[0].tolist() == [nothing] * 2
    routed(state, step, LAYERS - 1, np.array([[0, 1, 2]] * 3))
    state.forecasts.count = 0
    give(state, step + 1, 0, [nothing] * 3)
    forecasts.complete(state.setup, state.inputs, state.forecasts, state.predictor)
    assert forecast_rows(state, 0, 3)[0].tolist() == [nothing] * 3


def test_a_token_that_uses_fewer_experts_is_forecast_as_many() -> None:
    """In this pass only, and only where the forecast is about the same tokens."""
    state, _, _, step = three_tokens()
    rows = [[0, 1, 2], [3, 4, 5], [4, 5, 6]]
    give(state, step, 2, rows)
    give(state, step, 3, rows[:2])
    forecasts.cut_to_used(state.inputs, state.forecasts)
    assert forecast_rows(state, 0, 3)[0].tolist() == [rows[0], [3, UNUSED, UNUSED], rows[2]]
    assert forecast_rows(state, 1, 2)[0].tolist() == rows[:2]
    routed(state, step, LAYERS - 1, np.array([[0, 1], [2, UNUSED], [3, 4]]))
    state.forecasts.count = 0
    give(state, step + 1, 0, rows)
    forecasts.cut_to_used(state.inputs, state.forecasts)
    assert forecast_rows(state, 0, 3)[0].tolist() == rows


def judged(forecast: list[list[int]], chosen: list[list[int]], step: int = 7) -> tuple[float, int]:
    """The trust in forecasts one layer ahead after the first, and whether there was one."""
    state = made()
    tokens = np.zeros((len(forecast), 1), dtype=np.int64)
    routed(state, step, 0, tokens)
    state.forecasts.count = 0
    give(state, step, 1, forecast)
    forecasts.expect(state.setup, state.inputs, state.forecasts, state.predictor, 1)
    routed(state, step, 1, np.array(chosen, dtype=np.int64))
    forecasts.observe_routing(state)
    return float(state.predictor.trust[0]), int(state.predictor.judged)


@pytest.mark.parametrize("step", range(4))
def test_a_forecast_is_judged_token_by_token(step: int) -> None:
    """Three of the four that were named came true, each for its own token; a fiftieth counts."""
    rows = [[1, 2, UNUSED], [3, UNUSED, UNUSED], [UNUSED] * 3, [5, UNUSED, UNUSED]]
    trust, known = judged(rows, [[2, 5, 6], [3, 1, UNUSED], [1, 2, 3], [0, 5, UNUSED]], step)
    assert trust == pytest.approx(1 + 0.02 * (3 / 4 - 1))
    assert known


def test_what_names_nothing_or_other_tokens_is_not_judged() -> None:
    assert judged([[UNUSED] * 3] * 2, [[1, 2], [3, 4]]) == (1.0, 0)
    assert judged([[1, 2, 3]], [[4, 5], [5, 6]]) == (1.0, 0)


def test_a_forecast_is_judged_once() -> None:
    state = made()
    routed(state, 7, 0, np.array([[0]]))
    state.forecasts.count = 0
    give(state, 7, 1, [[1, 2, 3]])
    forecasts.expect(state.setup, state.inputs, state.forecasts, state.predictor, 1)
    for _ in range(2):
        routed(state, 7, 1, np.array([[4]]))
        forecasts.observe_routing(state)
    assert state.predictor.trust[0] == pytest.approx(0.98)
