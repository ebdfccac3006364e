"""Are the brain's records laid out without overlaps, and does growing keep what it knows?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.compiling.record_types import RecordType
from moesaic.compiling.records import DTYPES, Record, array_words, layout
from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.routing import Forecast
from moesaic.core.view import Flight
from moesaic.policies import records
from moesaic.policies.brain import Brain
from moesaic.policies.brain.c_header import COMMAND, HEADER, header
from moesaic.policies.brain.python_policies import forecast_from
from moesaic.policies.compiled import compiled
from moesaic.policies.records import (
    FLIGHT_CAPACITY,
    LAYOUT,
    MAX_PROPOSED,
    MOVE_WORDS,
    PLAN_HEADER,
    Inputs,
    Sizes,
    State,
)

SIZES = Sizes(
    layers=3,
    experts=5,
    lookahead=2,
    cache_planes=2,
    numbers_per_layer=2,
    entries=12,
    cost_tokens=7,
    predicts=True,
)


def filled(sizes: Sizes) -> State:
    """Every number of every array and every other number is another one."""
    state = records.state_of(sizes)
    for number, (record, member) in enumerate(state.arrays):
        values = getattr(record, member.name)
        values[...] = (np.arange(values.size).reshape(values.shape) + number) % 251
    for number, (record, name) in enumerate(numbers(state)):
        setattr(record, name, 1000 + number)
    return state


def numbers(record: Record) -> Iterator[tuple[Record, str]]:
    """Those outside of arrays, but for the layout's."""
    for member in record.members:
        if member.record is not None:
            yield from numbers(getattr(record, member.name))
        elif member.shape is None and member.name != "layout":
            yield record, member.name


def test_arrays_have_the_shapes_that_were_asked_for_and_no_word_in_common() -> None:
    state = filled(SIZES)
    taken = State.words
    for number, (record, member) in enumerate(state.arrays):
        found = getattr(record, member.name)
        assert member.shape is not None
        assert found.shape == member.shape.sized(SIZES)
        assert found.dtype == DTYPES[member.kind]
        expected = (np.arange(found.size) + number).reshape(found.shape) % 251
        assert (found == expected).all(), "another array was written over it"
        taken += array_words(member, found.shape)
    for number, (record, name) in enumerate(numbers(state)):
        assert getattr(record, name) == 1000 + number
    assert taken == len(state.memory_words), "no word is left over"


def test_octets_are_packed_eight_to_a_word() -> None:
    members = {member.name: member for member in Inputs.members}
    assert array_words(members["resident"], (3, 5)) == 2, "fifteen"
    assert array_words(members["flights"], (FLIGHT_CAPACITY, 3)) == 3 * FLIGHT_CAPACITY


def test_a_plan_and_its_proposals_have_space_for_every_expert() -> None:
    state, moves = records.state_of(SIZES), SIZES.experts + MAX_PROPOSED
    assert state.decision.plan.shape == (PLAN_HEADER + 2 * SIZES.experts + MOVE_WORDS * moves,)
    assert state.ahead.background.shape == (MAX_PROPOSED, MOVE_WORDS)


def test_what_does_not_predict_needs_no_pairs() -> None:
    state = records.state_of(SIZES._replace(predicts=False))
    assert state.predictor.pairs.size == state.predictor.ratios.size == 0
    assert records.state_of(SIZES).predictor.pairs.shape == (2, 3, 5, 5)


def test_growing_keeps_everything() -> None:
    small = filled(SIZES)
    large = records.grown(small, entries=40, cost_tokens=9)
    assert large.sizes == SIZES._replace(entries=40, cost_tokens=9)
    assert large.layout == LAYOUT
    for (old, name), (new, _) in zip(numbers(small), numbers(large), strict=True):
        assert getattr(old, name) == getattr(new, name), name
    for (old, member), (new, _) in zip(small.arrays, large.arrays, strict=True):
        before, after = getattr(old, member.name), getattr(new, member.name)
        assert (after[..., : before.shape[-1]] == before).all()
        assert not after[..., before.shape[-1] :].any()


def test_compiled_code_reads_and_writes_what_python_does() -> None:
    state = filled(SIZES)
    state.learned.miss_rate = 0.25
    total = state.inputs.expert_ids.sum() + state.predictor.pairs[1, 2, 3, 4]
    assert changed(state) == total + state.inputs.resident[2].sum()
    assert (state.inputs.layer, state.learned.miss_rate) == (7, 1.25)
    assert state.forecasts.ids[1].tolist() == [7] * SIZES.entries


@compiled
def changed(s: State) -> float:
    s.inputs.layer = 7
    s.learned.miss_rate += 1.0
    s.forecasts.ids[1] = s.inputs.layer
    ids, resident = s.inputs.expert_ids, s.inputs.resident
    return float(ids.sum() + s.predictor.pairs[1, 2, 3, 4] + resident[2].sum())


def test_another_layout_is_another_type_to_compiled_code() -> None:
    """So code that was kept for one is not found for the other."""

    class Small(Record):
        first: int
        second: float

    small = layout(Small)

    class Small(Record):  # type: ignore[no-redef]
        second: float
        first: int

    assert layout(Small) != small
    assert layout(Small, 5) != layout(Small, 6) != layout(Small)
    assert RecordType(State) == RecordType(State) != RecordType(Inputs)
    assert f"{LAYOUT:x}" not in RecordType(Inputs).name


def test_the_header_is_made_from_the_records() -> None:
    committed = (Path(__file__).parents[2] / HEADER).read_text()
    assert committed == header(), f"run {COMMAND}"


def brain_of(prefetch: str = "impact", promote: bool = True) -> Brain:
    physics = stated_physics(lambda t: 10 * t, lambda t: 50 * t, transfer=20)
    model = small_model(layers=3, experts=6, top_k=2)
    return make_brain(model, exact_belief(physics), 7, prefetch=prefetch, promote=promote)


def test_slots_are_divided_as_evenly_as_they_can_be() -> None:
    assert brain_of().state.setup.quota.tolist() == [3, 2, 2]


def test_a_brain_grows_with_its_steps_and_goes_on_deciding() -> None:
    """The same decisions as by a brain that had the space from the beginning."""
    early, late = brain_of(), brain_of()
    early.reserve(tokens=90, ranks=2)
    state = early.state
    rng = np.random.default_rng(0)
    for tokens in (1, 40, 90, 1):
        for layer in range(3):
            routing = routing_of(layer, [rng.permutation(6)[:2].tolist() for _ in range(tokens)])
            view = view_of([(layer, 0), (layer, 3)], 7)
            assert early.decide(routing, view) == late.decide(routing, view)
            assert early.look_ahead() == late.look_ahead()
    assert early.state is state, "it must not move"
    assert early.trust == late.trust


def test_only_what_is_under_way_to_the_gpu_counts_as_coming() -> None:
    brain = brain_of()
    view = view_of([], 7)
    flights = [Flight(1, 4, 30, IN_DRAM), Flight(0, 2, 50, IN_VRAM), Flight(2, 5, 60, IN_VRAM)]
    assert brain._fill_flights(tuple(flights)) == 2
    assert brain.state.inputs.flights[:2].tolist() == [[0, 2, 50], [2, 5, 60]]
    brain.decide(routing_of(0, [[0, 1]]), view)
    assert brain.state.inputs.num_flights == 0, "of an earlier layer nothing is left"


def test_a_layer_takes_its_dense_part_and_top_k_experts() -> None:
    brain = brain_of()
    brain.state.learned.gap_ns = 123
    assert brain.layer_ns == 123 + 2 * 10


def test_accuracy_is_known_once_a_forecast_was_judged() -> None:
    brain = brain_of()
    assert brain.forecast_accuracy == ()
    brain.state.predictor.judged = 1
    brain.state.predictor.trust[:] = [0.5, 0.25, 0.125]
    assert brain.forecast_accuracy == brain.trust == (0.5, 0.25, 0.125)


def test_a_body_is_asked_for_forecasts_where_they_could_move_something() -> None:
    ask = partial(brain_of, promote=False)
    for brain, depth in ((ask(), 3), (ask(prefetch="none"), 0)):
        assert brain.wants_forecasts() == 0, "nothing was decided"
        brain.decide(routing_of(0, [[0, 1]]), view_of([(0, 0), (0, 1)], 7))
        assert brain.wants_forecasts() == depth
        assert brain.state.forecasts.from_body == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_forecast_is_read_back_as_it_was_filled(number: int) -> None:
    brain = brain_of()
    tokens = [[0, 1], [2, 3], [0, 3]]
    brain.decide(routing_of(0, tokens), view_of([(0, e) for e in range(4)], 7))
    step = int(brain.state.inputs.step)
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
