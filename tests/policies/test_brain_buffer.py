"""Is the brain's buffer laid out without overlaps, and does growing keep what it knows?"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.routing import Forecast
from moesaic.core.view import Flight
from moesaic.policies.brain import Brain
from moesaic.policies.brain import fields as at
from moesaic.policies.brain.python_policies import forecast_from
from moesaic.policies.brain.state import Sizes, State, arrays
from moesaic.policies.prefetch.base import MAX_PROPOSED

SIZES = Sizes(
    layers=3,
    experts=5,
    lookahead=2,
    cache_planes=2,
    cache_numbers=2,
    entries=12,
    cost_tokens=7,
    predicts=True,
)
FIELDS = [array.field for array in arrays(SIZES)]
FROM_SIZES = {at.WORDS, at.LAYERS, at.EXPERTS, at.LOOKAHEAD, at.ENTRIES, at.COST_TOKENS}


def filled(sizes: Sizes) -> State:
    """Every number of every array and every scalar is another one."""
    state = State(sizes)
    for field in FIELDS:
        values = np.arange(state.of(field).size).reshape(state.of(field).shape) + field
        state.of(field)[...] = values % 251
    for scalar in set(range(at.NUM_SCALARS)) - FROM_SIZES:
        state.words[scalar] = 1000 + scalar
    return state


def test_arrays_have_the_shapes_that_were_asked_for_and_no_word_in_common() -> None:
    state = filled(SIZES)
    for array in arrays(SIZES):
        found = state.of(array.field)
        assert found.shape == array.shape
        assert found.dtype == array.dtype
        expected = (np.arange(found.size) + array.field).reshape(found.shape) % 251
        assert (found == expected).all(), "another array was written over it"
    assert state.words[at.WORDS] == len(state.words)
    taken = sum(array.words for array in arrays(SIZES))
    assert len(state.words) == at.FIRST_ARRAY_WORD + taken, "no word is left over"


def test_octets_are_packed_eight_to_a_word() -> None:
    by_field = {array.field: array for array in arrays(SIZES)}
    assert by_field[at.RESIDENT].words == 2, "fifteen"
    assert by_field[at.FLIGHTS].words == 3 * at.FLIGHT_CAPACITY


def test_a_plan_and_its_proposals_have_space_for_every_expert() -> None:
    by_field = {array.field: array for array in arrays(SIZES)}
    moves = SIZES.experts + MAX_PROPOSED
    expected = at.PLAN_HEADER + 2 * SIZES.experts + at.MOVE_WORDS * moves
    assert by_field[at.PLAN].shape == (expected,)
    assert by_field[at.BACKGROUND].shape == (MAX_PROPOSED, at.MOVE_WORDS)


def test_what_does_not_predict_needs_no_pairs() -> None:
    state = State(SIZES._replace(predicts=False))
    assert state.of(at.PAIRS).size == state.of(at.RATIOS).size == 0
    assert State(SIZES).of(at.PAIRS).shape == (2, 3, 5, 5)


def test_growing_keeps_everything() -> None:
    small = filled(SIZES)
    large = small.grown(entries=40, cost_tokens=9)
    assert large.sizes == SIZES._replace(entries=40, cost_tokens=9)
    scalars = {at.WORDS: len(large.words), at.ENTRIES: 40, at.COST_TOKENS: 9}
    for scalar in range(at.NUM_SCALARS):
        assert large.words[scalar] == scalars.get(scalar, small.words[scalar]), scalar
    for field in FIELDS:
        old, new = small.of(field), large.of(field)
        assert (new[..., : old.shape[-1]] == old).all()
        assert not new[..., old.shape[-1] :].any()


def brain_of(prefetch: str = "impact", promote: bool = True) -> Brain:
    physics = stated_physics(lambda t: 10 * t, lambda t: 50 * t, transfer=20)
    model = small_model(layers=3, experts=6, top_k=2)
    return make_brain(model, exact_belief(physics), 7, prefetch=prefetch, promote=promote)


def test_slots_are_divided_as_evenly_as_they_can_be() -> None:
    assert brain_of().state.of(at.QUOTA).tolist() == [3, 2, 2]


def test_a_brain_grows_with_its_steps_and_goes_on_deciding() -> None:
    """The same decisions as by a brain that had the space from the beginning."""
    early, late = brain_of(), brain_of()
    early.reserve(tokens=90, ranks=2)
    words = early.state.words
    rng = np.random.default_rng(0)
    for tokens in (1, 40, 90, 1):
        for layer in range(3):
            routing = routing_of(layer, [rng.permutation(6)[:2].tolist() for _ in range(tokens)])
            view = view_of([(layer, 0), (layer, 3)], 7)
            assert early.decide(routing, view) == late.decide(routing, view)
            assert early.look_ahead() == late.look_ahead()
    assert early.state.words is words, "it must not move"
    assert early.trust == late.trust


def test_only_what_is_under_way_to_the_gpu_counts_as_coming() -> None:
    brain = brain_of()
    view = view_of([], 7)
    flights = [Flight(1, 4, 30, IN_DRAM), Flight(0, 2, 50, IN_VRAM), Flight(2, 5, 60, IN_VRAM)]
    assert brain._fill_flights(tuple(flights)) == 2
    assert brain.state.of(at.FLIGHTS)[:2].tolist() == [[0, 2, 50], [2, 5, 60]]
    brain.decide(routing_of(0, [[0, 1]]), view)
    assert brain.state.words[at.NUM_FLIGHTS] == 0, "of an earlier layer nothing is left"


def test_a_layer_takes_its_dense_part_and_top_k_experts() -> None:
    brain = brain_of()
    brain.state.words[at.GAP_NS] = 123
    assert brain.layer_ns == 123 + 2 * 10


def test_accuracy_is_known_once_a_forecast_was_judged() -> None:
    brain = brain_of()
    assert brain.forecast_accuracy == ()
    brain.state.words[at.JUDGED] = 1
    brain.state.of(at.TRUST)[:] = [0.5, 0.25, 0.125]
    assert brain.forecast_accuracy == brain.trust == (0.5, 0.25, 0.125)


def test_a_body_is_asked_for_forecasts_where_they_could_move_something() -> None:
    ask = partial(brain_of, promote=False)
    for brain, depth in ((ask(), 3), (ask(prefetch="none"), 0)):
        assert brain.wants_forecasts() == 0, "nothing was decided"
        brain.decide(routing_of(0, [[0, 1]]), view_of([(0, 0), (0, 1)], 7))
        assert brain.wants_forecasts() == depth
        assert brain.state.words[at.BODY_FORECASTS] == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_forecast_is_read_back_as_it_was_filled(number: int) -> None:
    brain = brain_of()
    tokens = [[0, 1], [2, 3], [0, 3]]
    brain.decide(routing_of(0, tokens), view_of([(0, e) for e in range(4)], 7))
    step = int(brain.state.words[at.STEP])
    given = [
        Forecast(1 + d, np.array([[d, 2], [4, 5], [3, d]]),
                 np.array([[0.5, 0.25], [0.75, 0.125], [0.5, 0.375]], np.float32), step)
        for d in range(2)
    ]  # fmt: skip
    brain.look_ahead(given)
    found = forecast_from(brain.state, number)
    assert (found.layer, found.step) == (1 + number, step)
    assert found.ranked.tolist() == given[number].ranked.tolist()
    assert found.scores.tolist() == given[number].scores.tolist()
    assert found.ranked.dtype == np.int64
    assert found.scores.dtype == np.float32
