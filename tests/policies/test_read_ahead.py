"""Which experts the CPU may be given next, for its caches: what the brain predicts of the next
layer, of that what is not on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.brain import Brain
from moesaic.policies.brain.forecasts import IDLE_LAYERS, choose_read_ahead
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import SYSTEMS

MODEL = small_model(layers=3, experts=8, top_k=2)
FOLLOWS = {(0, 1): [2, 3], (4, 5): [6, 7]}  # in layer 1


def _brain(prefetch: str = "impact", cpu_slowed: int = 0) -> Brain:
    physics = stated_physics(lambda t: 10, lambda t: 400, transfer=100, model=MODEL)
    belief = exact_belief(physics)
    brain = make_brain(MODEL, belief, 8, "static-experts", "lfu", prefetch, promote=False)
    brain.state.costs.cpu_slowed_by = cpu_slowed
    return brain


def _taught(brain: Brain, there: list[tuple[int, int]], times: int = 10) -> Brain:
    view = view_of(there, 8, experts=8)
    for before, after in list(FOLLOWS.items()) * times:
        brain.plan(routing_of(0, [list(before)]), view)
        brain.plan(routing_of(1, [after]), view)
    return brain


def _candidates(brain: Brain) -> list[int]:
    count = choose_read_ahead(brain.state)
    ids: list[int] = brain.state.ahead.read_ahead_ids[:count].tolist()
    return ids


def _after(brain: Brain, layer: int, tokens: list[list[int]], there: list[tuple[int, int]]) -> None:
    brain.plan(routing_of(layer, tokens), view_of(there, 8, experts=8))


@pytest.mark.parametrize("before", list(FOLLOWS))
def test_what_follows_most_often_comes_first(before: tuple[int, int]) -> None:
    brain = _taught(_brain(), [])
    _after(brain, 0, [list(before)], [])
    found = _candidates(brain)
    assert len(found) == 8
    assert sorted(found[:2]) == FOLLOWS[before]


def test_what_the_gpu_has_is_left_out() -> None:
    there = [(1, 2), (1, 6), (1, 7)]
    brain = _taught(_brain(), there)
    _after(brain, 0, [[0, 1]], there)
    found = _candidates(brain)
    assert found[0] == 3
    assert not {2, 6, 7} & set(found)


def test_all_that_is_absent_may_be_less_than_asked_for() -> None:
    there = [(1, expert) for expert in range(7)]
    brain = _taught(_brain(), there, 1)
    _after(brain, 0, [[0, 1]], there)
    assert _candidates(brain) == [7]


@pytest.mark.parametrize("asked", [0, 1, 2, 8])
def test_read_ahead_has_eight_candidates_whatever_its_limit(asked: int) -> None:
    brain = _taught(_brain(f"impact:read_ahead={asked}"), [])
    _after(brain, 0, [[0, 1]], [])
    assert len(_candidates(brain)) == (8 if asked else 0)


def test_nothing_after_the_last_layer_or_of_several_tokens() -> None:
    brain = _taught(_brain(), [])
    _after(brain, 2, [[0, 1]], [])
    assert _candidates(brain) == []
    _after(brain, 0, [[0, 1], [4, 5]], [])
    assert _candidates(brain) == []


@pytest.mark.parametrize("prefetch", ["none", "next-layer"])
def test_other_policies_leave_caches_alone(prefetch: str) -> None:
    brain = _taught(_brain(prefetch), [])
    _after(brain, 0, [[0, 1]], [])
    assert _candidates(brain) == []


def test_pairs_are_counted_while_looking_ahead_rests() -> None:
    """Where looking ahead does not pay, reading ahead goes on, and so does learning for it."""
    pairs, uses = {}, {}
    for ahead in (0, 4):
        brain = _brain(f"impact:read_ahead={ahead}", cpu_slowed=1)
        brain.state.ahead.resting = 1000
        state = _taught(brain, []).state
        pairs[ahead], uses[ahead] = (
            np.asarray(state.predictor.pairs),
            np.asarray(state.predictor.uses),
        )
        _after(brain, 0, [[0, 1], [4, 5]], [])  # several tokens are not read ahead
        assert uses[ahead].sum() == (80 if ahead else 0)
    assert not pairs[0].any()
    assert pairs[4][0, 1, 0, 2] == 10  # the next layer's, ...
    assert not pairs[4][1:].any()  # ... no later one's, whose predictions
    assert not uses[4][1:].any()  # stay as they are


def test_where_the_cpu_is_given_nothing_nothing_is_read_until_it_is_again() -> None:
    there = [(0, 0), (0, 1)]
    brain = _taught(_brain(), there)
    for _ in range(IDLE_LAYERS):
        _after(brain, 0, [[0, 1]], there)
        assert _candidates(brain)
    _after(brain, 0, [[0, 1]], there)
    assert _candidates(brain) == []
    _after(brain, 0, [[0, 2]], there)
    assert _candidates(brain)


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(ImpossibleSetting, match="at least 0 and at most 8"):
        PolicySet.of(prefetch="impact:read_ahead=9")


def test_hybrimoe_is_the_papers_and_leaves_caches_alone() -> None:
    assert SYSTEMS["hybrimoe"].policies.prefetch.parameters["read_ahead"] == 0
    assert SYSTEMS["moesaic"].policies.prefetch.parameters["read_ahead"] == 4
