"""Does the brain hear what the routers said, and what the later gates would say?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stock
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.experts.expert_service import RoutedTokens
from moesaic.models.experts.gate_bank import GateBank
from moesaic.models.experts.router import Choice
from moesaic.models.token_batch import Segment
from real_runs import PROMPT, Loaded, loaded, running, say, settings

ROUNDING = 1e-5  # the bank multiplies gates and norms beforehand: fp32 rounds differently there


def first_routed(model: Loaded) -> RoutedTokens:
    """The prompt at the first router."""
    cache = BlockCache(model.spec, 1, 64, torch.float32)
    seen: list[RoutedTokens] = []

    class Noting:
        def compute(self, routed: RoutedTokens) -> torch.Tensor:
            seen.append(routed)
            return torch.zeros_like(routed.hidden)

    segments = [Segment(0, len(PROMPT))]
    model.decoder.forward(torch.tensor(PROMPT), segments, cache, Noting())
    return seen[0]


def ranks_of(model: Loaded) -> int:
    return min(2 * model.spec.top_k, model.spec.num_experts)


@pytest.mark.parametrize("name", stock.ALL)
def test_forecasts_rank_as_the_layers_own_gates(name: str) -> None:
    model = loaded(name)
    bank, ranks = model.decoder.gate_bank(), ranks_of(model)
    stream = first_routed(model).residual
    depth = bank.depth(0, wanted=10)
    assert depth == model.spec.num_moe_layers - 1
    if not depth:
        return
    with torch.inference_mode():
        forecasts = bank.forecasts(0, depth, ranks, stream, step=7)
    assert [forecast.layer for forecast in forecasts] == list(range(1, depth + 1))
    assert {forecast.step for forecast in forecasts} == {7}
    for forecast in forecasts:
        choice = model.decoder.gate(forecast.layer, stream)
        ranked = torch.from_numpy(forecast.ranked)
        best = choice.preference.topk(ranks).values
        torch.testing.assert_close(
            choice.preference.gather(1, ranked), best, atol=ROUNDING, rtol=0, msg="another order"
        )
        scores = choice.scores.gather(1, ranked).numpy()
        np.testing.assert_allclose(forecast.scores, scores, atol=ROUNDING)
        k = model.spec.top_k
        same = (ranked[:, :k].sort().values == choice.experts.sort().values).all(dim=1)
        gap = choice.preference.topk(min(k + 1, model.spec.num_experts)).values
        clear = (gap[:, k - 1] - gap[:, -1] > ROUNDING) | (k == model.spec.num_experts)
        assert clear.any()
        assert same[clear].all()


@pytest.mark.parametrize("prefetch", ["impact", "next-layer", "none"])
def test_gates_are_applied_only_where_something_could_be_moved(
    prefetch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per layer at most, as deep as the policy looks, and never where nothing can move, nor
    in a step in which the brain rests from looking ahead."""
    asked: list[tuple[int, int]] = []
    wanted: list[tuple[int, int]] = []
    forecasts = GateBank.forecasts

    def counted(bank: GateBank, layer: int, depth: int, *args: Any) -> Any:
        asked.append((layer, depth))
        return forecasts(bank, layer, depth, *args)

    monkeypatch.setattr(GateBank, "forecasts", counted)
    model = loaded("olmoe")
    with running(model, settings("best-split", "lru", prefetch), model.slots(0.5)) as runner:
        wants = runner.brain.wants_forecasts

        def listening() -> int:
            depth, state = wants(), runner.brain.state
            here = state.inputs.layer
            assert (depth > 0) == (state.ahead.max_background > 0 and not state.ahead.resting)
            if depth:
                wanted.append((here, min(depth, model.spec.num_moe_layers - 1 - here)))
            return depth

        runner.brain.wants_forecasts = listening  # type: ignore[method-assign]
        say(runner, steps=6)
    assert asked == wanted
    assert bool(asked) == (prefetch != "none")


def test_without_gates_or_later_layers_nothing_is_forecast() -> None:
    model = loaded("olmoe")
    assert not RoutingAdapter(ranks_of(model)).can_forecast(0)
    with_gates = RoutingAdapter(ranks_of(model), model.decoder.gate_bank())
    assert [with_gates.can_forecast(layer) for layer in range(3)] == [True, True, False]
    assert not RoutingAdapter(0, model.decoder.gate_bank()).can_forecast(0)


def test_where_every_expert_is_chosen_later_layers_are_forecast_all_the_same() -> None:
    model = loaded("mixtral-every-expert")
    translator = RoutingAdapter(ranks_of(model), model.decoder.gate_bank())
    with torch.inference_mode():
        made = translator.forecasts(first_routed(model), depth=3, step=0)
    assert [forecast.layer for forecast in made] == [1, 2], "there are no more layers"


@pytest.mark.parametrize("name", stock.ALL)
def test_ranked_experts_are_the_chosen_ones_then_others_and_none_twice(name: str) -> None:
    model = loaded(name)
    routed, ranks = first_routed(model), ranks_of(model)
    routing = RoutingAdapter(ranks).routing(routed)
    k = model.spec.top_k
    assert routing.experts.tolist() == routed.choice.experts.tolist()
    assert routing.ranked[:, :k].tolist() == routing.experts.tolist()
    assert routing.ranked.shape == routing.scores.shape == (len(PROMPT), ranks)
    assert_no_repetition(routing.ranked)
    scores = routed.choice.scores.gather(1, torch.from_numpy(routing.ranked))
    np.testing.assert_array_equal(routing.scores, scores.numpy())
    preference = routed.choice.preference.gather(1, torch.from_numpy(routing.ranked))
    assert (preference.clamp(min=-1e30).diff(dim=1) <= 0).all(), "best first"


@pytest.mark.parametrize("tied", [0.0, 0.125, float("-inf")])
def test_ties_never_bring_an_expert_twice(tied: float) -> None:
    """All experts score the same, or all but a few are excluded."""
    preference = torch.full((4, 8), tied)
    preference[1, 3:5] = 0.5
    scores = torch.full((4, 8), 0.125)
    weights, experts = preference.topk(3)
    choice = Choice(experts, weights, scores, preference)
    stream = torch.zeros((4, 2))
    for ranks in range(3, 9):
        routing = RoutingAdapter(ranks).routing(RoutedTokens(0, stream, stream, choice))
        assert routing.ranked.shape == (4, ranks)
        assert_no_repetition(routing.ranked)
        assert routing.ranked[:, :3].tolist() == experts.tolist()


@pytest.mark.parametrize("tied", [0.0, float("-inf")])
def test_what_tokens_do_not_use_is_ranked_as_the_router_has_it(tied: float) -> None:
    """The second token uses one of three experts, the third two; the last five are tied."""
    preference = torch.full((3, 8), tied)
    preference[:, :3] = torch.tensor([[0.3, 0.5, 0.2], [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
    scores = torch.arange(24.0).view(3, 8)
    experts = torch.tensor([[1, 0, 2], [2, -1, -1], [0, 1, -1]])
    counts = torch.tensor([3, 1, 2])
    choice = Choice(experts, torch.zeros(3, 3), scores, preference, counts)
    stream = torch.zeros((3, 2))
    for ranks in range(3, 9):
        routing = RoutingAdapter(ranks).routing(RoutedTokens(0, stream, stream, choice), step=5)
        assert routing.step == 5
        assert routing.experts.tolist() == experts.tolist()
        assert routing.counts is not None
        assert routing.counts.tolist() == [3, 1, 2]
        assert routing.ranked[:, :3].tolist() == [[1, 0, 2], [2, 1, 0], [0, 1, 2]]
        assert_no_repetition(routing.ranked)
        expected = np.take_along_axis(scores.numpy(), routing.ranked, axis=1)
        np.testing.assert_array_equal(routing.scores, expected)
    untold = RoutingAdapter(0).routing(RoutedTokens(0, stream, stream, choice), step=5)
    assert (untold.step, untold.used().tolist()) == (5, [1, 0, 2, 2, 0, 1])


def test_without_slots_a_routing_has_only_the_chosen() -> None:
    routed = first_routed(loaded("olmoe"))
    routing = RoutingAdapter(0).routing(routed)
    assert routing.ranked is routing.experts
    np.testing.assert_array_equal(routing.experts, routed.choice.experts.numpy())
    assert routing.weights.size == routing.scores.size == 0, "weights are not needed"


def assert_no_repetition(ranked: Any) -> None:
    ordered = np.sort(ranked, axis=1)
    assert (ordered[:, 1:] != ordered[:, :-1]).all(), "an expert is ranked twice"
