"""What a brain moves in idle link time, by hand: promotions of what ran on the CPU, prefetches for
later layers, and who may have to go for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from brain_parts import state_of

from made_up import (
    exact_belief,
    future_of,
    make_brain,
    random_steps,
    routing_of,
    small_model,
    stated_physics,
    view_of,
)
from moesaic.core.layer_plan import Move
from moesaic.core.report import LayerReport
from moesaic.core.routing import ExpertId, Forecast
from moesaic.core.view import Flight, View, offloading_view
from moesaic.policies.brain import Brain
from moesaic.policies.brain.promotions import promote
from moesaic.policies.compose import Composition
from moesaic.policies.future import Future
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape

LAYERS, EXPERTS = 3, 6
MODEL = small_model(LAYERS, EXPERTS, top_k=2)


def _brain(slots: int, future: Future | None = None, cpu_ns: int = 400, **choices: object) -> Brain:
    """A GPU expert takes 10, a CPU expert 400, a transfer 100: time for four of them."""
    physics = stated_physics(lambda t: 10, lambda t: cpu_ns, transfer=100, model=MODEL)
    given = {"schedule": "static-experts", "cache": "lfu", "prefetch": "none", **choices}
    policies = PolicySet.of(**given)  # type: ignore[arg-type]
    composition = Composition(policies, Shape(LAYERS, EXPERTS, 2), slots, checked=True)
    return composition.brain(exact_belief(physics), future)


def _view(resident: Sequence[tuple[int, int]], slots: int, *flights: Flight) -> View:
    table = np.zeros((LAYERS, EXPERTS), dtype=np.uint8)
    for where in resident:
        table[where] = 1
    link_ns = max((flight.remaining_ns for flight in flights), default=0)
    return offloading_view(table, slots, flights, pcie_busy_ns=link_ns)


def _worth(brain: Brain, layer: int, values: Sequence[float]) -> None:
    brain.cache.values[layer] = values


def _ids(moves: Sequence[Move]) -> list[tuple[int, int]]:
    return [(move.layer, move.expert) for move in moves]


def test_promotions_go_best_first_while_a_resident_is_worth_less() -> None:
    """The routing adds 1 to 3, 4 and 5, which are then worth 4, 6 and 3: 4 takes the place of 0,
    and 3 takes no slot, for 1 is worth more."""
    brain = _brain(slots=6)
    _worth(brain, 0, [1, 5, 0, 3, 5, 2])
    plan = brain.plan(routing_of(0, [[3], [4], [5]]), _view([(0, 0), (0, 1)], 6))
    assert plan.queues["cpu"] == (5, 4, 3)
    assert plan.background == (Move(0, 4, ExpertId(0, 0)),)


def test_with_admission_always_promotions_stop_when_no_victim_is_left() -> None:
    brain = _brain(slots=6, cache="lfu:admission=always")
    _worth(brain, 0, [1, 9, 0, 3, 5, 2])
    plan = brain.plan(routing_of(0, [[3], [4], [5]]), _view([(0, 0), (0, 1)], 6))
    assert plan.background == (Move(0, 4, ExpertId(0, 0)), Move(0, 3, ExpertId(0, 1)))


def test_promotions_that_are_worth_the_same_keep_the_order_of_the_cpus_queue() -> None:
    brain = _brain(slots=18)
    plan = brain.plan(routing_of(0, [[3], [4], [5]]), _view([], 18))
    assert plan.queues["cpu"] == (5, 4, 3)
    assert _ids(plan.background) == [(0, 5), (0, 4), (0, 3)]


def test_what_is_under_way_or_there_is_not_promoted() -> None:
    """Experts of this layer, 3 by number, and of another, 4 by the same number as one here."""
    brain = _brain(slots=18)
    view = _view([(0, 0)], 18, Flight(1, 4, 10), Flight(0, 3, 20))
    plan = brain.plan(routing_of(0, [[3], [4], [0]]), view)
    assert plan.queues == {"gpu": (0,), "cpu": (4, 3)}
    assert _ids(plan.background) == [(0, 4)]


@pytest.mark.parametrize(
    ("cpu_ns", "count"), [(19, 1), (20, 1), (21, 2), (60, 3), (61, 4), (200, 4)]
)
def test_no_more_moves_than_can_start_before_the_next_layer(cpu_ns: int, count: int) -> None:
    """Five missed experts on the CPU; a transfer every 100, and never more than four at once."""
    brain = _brain(slots=18, cpu_ns=cpu_ns)
    plan = brain.plan(routing_of(0, [[1], [2], [3], [4], [5]]), _view([], 18))
    assert len(plan.background) == count


@pytest.mark.parametrize(
    ("found", "delays", "promoted"),
    [
        (0, (0, 5, 11, 11), 2),  # the second costs 6: more than a twentieth of a transfer
        (1, (0, 9, 14, 19), 2),  # the first is taken
        (0, (0, 6, 12, 18), 0),
        (0, (0, 0, 0, 0), 3),
        (3, (0, 0, 0, 0), 0),
    ],
)
def test_a_promotion_may_cost_the_next_layer_a_twentieth_of_its_transfer(
    found: int, delays: tuple[int, ...], promoted: int
) -> None:
    """Three moves could start; of four experts on the CPU one is resident, and the others have a
    free slot each."""
    state = state_of(LAYERS, EXPERTS)
    s = state
    s.setup.promote, s.ahead.max_background, s.costs.transfer_ns = 1, 3, 100
    s.inputs.layer, s.setup.slots, s.setup.global_pool = 1, 18, 1
    state.ahead.delays[: len(delays)] = delays
    state.decision.assigned[1, :4] = [5, 2, 3, 4]
    state.inputs.resident[1, 4] = 1
    state.decision.assigned[3, 1] = 4
    state.cache.values[1] = [1, 9, 2, 3, 9, 5]
    assert promote(s, found) == found + promoted
    moved = state.ahead.background[found : found + promoted, :2].tolist()
    assert moved == [[1, 5], [1, 3], [1, 2]][:promoted]


def _forecast(layer: int, *experts: int) -> Forecast:
    scores = np.linspace(0.6, 0.2, len(experts), dtype=np.float32)
    return Forecast(layer, np.array([experts]), scores[None, :])


@pytest.mark.parametrize("prefetch", ["next-layer", "impact"])
def test_a_prefetch_evicts_no_expert_of_the_forecast(prefetch: str) -> None:
    """Layer 1 has two slots. 0 is worth nothing but is forecast, so 1 has to go."""
    brain = _brain(slots=6, prefetch=prefetch, promote=False)
    _worth(brain, 1, [0, 5, 0, 0, 0, 0])
    routing = routing_of(0, [[2, 3]], forecasts=(_forecast(1, 0, 4),))
    plan = brain.plan(routing, _view([(1, 0), (1, 1)], 6))
    assert plan.background == (Move(1, 4, ExpertId(1, 1)),)


@pytest.mark.parametrize("prefetch", ["next-layer", "impact"])
def test_proposals_without_a_slot_are_dropped(prefetch: str) -> None:
    """All that lies in layer 1 is forecast, too: no victim is left."""
    brain = _brain(slots=3, prefetch=prefetch, promote=False)
    routing = routing_of(0, [[2, 3]], forecasts=(_forecast(1, 0, 4),))
    assert brain.plan(routing, _view([(1, 0)], 3)).background == ()


@pytest.mark.parametrize("prefetch", ["next-layer", "impact"])
def test_what_is_under_way_to_a_later_layer_is_not_brought_twice(prefetch: str) -> None:
    """5 is under way to layer 1; another 4 is, but to layer 2."""
    brain = _brain(slots=18, prefetch=prefetch, promote=False)
    routing = routing_of(0, [[2, 3]], forecasts=(_forecast(1, 5, 4),))
    view = _view([], 18, Flight(2, 4, 10), Flight(1, 5, 20))
    assert _ids(brain.plan(routing, view).background) == [(1, 4)]


def test_an_oracle_prefetches_the_truth_and_is_not_judged() -> None:
    steps = random_steps(3, 4, MODEL)
    brain = _brain(18, future_of(steps, MODEL), prefetch="oracle:lookahead=1", promote=False)
    for number, step in enumerate(steps):
        for routing in step.routings:
            plan = brain.plan(routing.at_step(number), _view([], 18))
            wanted = [] if routing.layer == 2 else step.layer(routing.layer + 1).used().tolist()
            assert sorted(move.expert for move in plan.background) == sorted(wanted)
    assert brain.forecast_accuracy == ()


def test_forecasts_of_a_body_are_judged() -> None:
    """One of two forecast experts came: a fiftieth of the way from 1 to 1/2."""
    brain = _brain(18, prefetch="impact:lookahead=1")
    brain.plan(routing_of(0, [[2, 3]], forecasts=(_forecast(1, 0, 4),)), _view([], 18))
    assert brain.forecast_accuracy == ()
    brain.plan(routing_of(1, [[4, 5]]), _view([], 18))
    assert brain.forecast_accuracy == pytest.approx((0.99,))


@pytest.mark.parametrize(
    ("choices", "moves"),
    [
        ({"cache": "pinned"}, False),
        ({"promote": False}, False),
        ({}, True),
        ({"prefetch": "impact", "promote": False}, True),
    ],
)
def test_idle_time_is_used_where_something_may_move(
    choices: dict[str, object], moves: bool
) -> None:
    brain = _brain(slots=18, **choices)  # type: ignore[arg-type]
    routing = routing_of(0, [[2, 3]], forecasts=(_forecast(1, 0, 4),))
    assert bool(brain.plan(routing, _view([], 18)).background) == moves


# Experts that ran on the CPU and take a slot later: when, and what moving is learned to cost.

PROMOTING = small_model(layers=4, experts=6, top_k=2)
SLOTS = 8


def _promoting_brain(cpu_slowed: int) -> Brain:
    """Every missing expert runs on the CPU: a transfer takes five times as long."""
    physics = stated_physics(lambda t: 10, lambda t: 100, transfer=500, model=PROMOTING)
    belief = replace(exact_belief(physics), cpu_slowed=cpu_slowed)
    return make_brain(PROMOTING, belief, SLOTS, schedule="best-split", prefetch="none")


def _moves(brain: Brain, layer: int, experts: tuple[int, int], *resident: tuple[int, int],
           flight: Flight | None = None) -> list[Move]:  # fmt: skip
    view = view_of(list(resident), SLOTS, PROMOTING.num_moe_layers, flight=flight)
    return list(brain.plan(routing_of(layer, [list(experts)]), view).background)


def _named(moves: list[Move]) -> list[tuple[int, int]]:
    return [(move.layer, move.expert) for move in moves]


def test_without_contention_an_expert_is_promoted_in_its_own_layer() -> None:
    assert (0, 1) in _named(_moves(_promoting_brain(0), 0, (1, 2)))


def test_where_copies_slow_the_cpu_down_it_waits_for_two_layers() -> None:
    """Until then it lies in the CPU's caches."""
    brain = _promoting_brain(1)
    assert _moves(brain, 0, (1, 2)) == []
    assert _moves(brain, 1, (3, 4)) == []
    assert set(_named(_moves(brain, 2, (1, 3)))) <= {(0, 1), (0, 2)}
    assert set(_named(_moves(brain, 3, (1, 3)))) <= {(1, 3), (1, 4)}
    found = _named(_moves(brain, 0, (1, 2)))
    assert found, "layers of the step before are not forgotten"
    assert set(found) <= {(2, 1), (2, 3)}


@pytest.mark.parametrize("there", ["resident", "under way"])
def test_what_has_come_meanwhile_is_not_promoted(there: str) -> None:
    brain = _promoting_brain(1)
    _moves(brain, 0, (1, 2))
    _moves(brain, 1, (3, 4))
    if there == "resident":
        found = _moves(brain, 2, (1, 3), (0, 1), (0, 2))
    else:
        found = _moves(brain, 2, (1, 3), (0, 2), flight=Flight(0, 1, 200))
    assert not {(0, 1), (0, 2)} & set(_named(found))


def _learn(brain: Brain, moves: int, taken_ns: int) -> None:
    """A layer of 100 on the CPU, and what it and the dense part after it took in all."""
    s = brain.state
    for layer in (0, 1):
        brain.plan(routing_of(layer, [[1, 2]]), view_of([], SLOTS, PROMOTING.num_moe_layers))
        s.ahead.moves, s.ahead.moves_cost_ns = (moves, 0) if layer == 0 else (0, 0)
        start = 10_000 + (200 + taken_ns if layer else 0)
        end = start + 200  # as estimated: two experts of 100
        brain.learn(routing_of(layer, [[1, 2]]), LayerReport(layer, start, end, 2, 0, 0))


def test_what_moving_costs_is_learned_from_layers_with_and_without() -> None:
    brain = _promoting_brain(1)
    for _ in range(8):
        _learn(brain, moves=0, taken_ns=50)
    for _ in range(7):
        _learn(brain, moves=1, taken_ns=90)
    assert brain.state.learned.moving_more_ns == 0, "too few were seen"
    _learn(brain, moves=1, taken_ns=90)
    assert brain.state.learned.moving_more_ns == pytest.approx(40, abs=2)


def test_moves_that_seem_to_help_cost_nothing() -> None:
    brain = _promoting_brain(1)
    for _ in range(8):
        _learn(brain, moves=0, taken_ns=90)
        _learn(brain, moves=1, taken_ns=50)
    assert brain.state.learned.moving_more_ns == 0


def test_the_cost_is_forgotten_where_nothing_moves() -> None:
    brain = _promoting_brain(1)
    brain.state.learned.moving_more_ns = 1_000_000
    brain.state.learned.still_tokens = 1
    _learn(brain, moves=0, taken_ns=50)
    assert 999_000 < brain.state.learned.moving_more_ns < 1_000_000
    brain.state.learned.moving_more_ns = 2
    for _ in range(2):
        _learn(brain, moves=0, taken_ns=50)
    assert brain.state.learned.moving_more_ns == 0


def test_other_steps_begin_anew() -> None:
    brain = _promoting_brain(1)
    _learn(brain, moves=0, taken_ns=50)
    s = brain.state
    s.learned.still_tokens, s.learned.moving_more_ns = 7, 500_000
    _learn(brain, moves=0, taken_ns=80)
    assert (s.learned.still_tokens, s.learned.stills, s.learned.still_ns) == (1, 1, 80)
    assert s.learned.moving_more_ns == 0, "what a prompt taught says nothing of decoding"


def test_a_learned_cost_counts_against_every_move() -> None:
    brain = _promoting_brain(1)
    brain.state.learned.moving_more_ns = 70
    brain.plan(routing_of(0, [[1, 2]]), view_of([], SLOTS, PROMOTING.num_moe_layers))
    room = int(brain.state.ahead.max_background)
    delays = brain.state.ahead.delays[: room + 1].tolist()
    assert room > 0
    assert delays[0] == 0
    assert all(delay >= 70 for delay in delays[1:])
