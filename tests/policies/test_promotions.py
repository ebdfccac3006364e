"""Experts that ran on the CPU and take a slot later: when, and what moving is learned to cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.layer_plan import Move
from moesaic.core.report import LayerReport
from moesaic.core.view import Flight
from moesaic.policies.brain import Brain

MODEL = small_model(layers=4, experts=6, top_k=2)
SLOTS = 8


def _brain(cpu_slowed: int) -> Brain:
    """Every missing expert runs on the CPU: a transfer takes five times as long."""
    physics = stated_physics(lambda t: 10, lambda t: 100, transfer=500, model=MODEL)
    belief = replace(exact_belief(physics), cpu_slowed=cpu_slowed)
    return make_brain(MODEL, belief, SLOTS, schedule="best-split", prefetch="none")


def _moves(brain: Brain, layer: int, experts: tuple[int, int], *resident: tuple[int, int],
           flight: Flight | None = None) -> list[Move]:  # fmt: skip
    view = view_of(list(resident), SLOTS, MODEL.num_moe_layers, flight=flight)
    return list(brain.plan(routing_of(layer, [list(experts)]), view).background)


def _named(moves: list[Move]) -> list[tuple[int, int]]:
    return [(move.layer, move.expert) for move in moves]


def test_without_contention_an_expert_is_promoted_in_its_own_layer() -> None:
    assert (0, 1) in _named(_moves(_brain(0), 0, (1, 2)))


def test_where_copies_slow_the_cpu_down_it_waits_for_two_layers() -> None:
    """Until then it lies in the CPU's caches."""
    brain = _brain(1)
    assert _moves(brain, 0, (1, 2)) == []
    assert _moves(brain, 1, (3, 4)) == []
    assert set(_named(_moves(brain, 2, (1, 3)))) <= {(0, 1), (0, 2)}
    assert set(_named(_moves(brain, 3, (1, 3)))) <= {(1, 3), (1, 4)}
    found = _named(_moves(brain, 0, (1, 2)))
    assert found, "layers of the step before are not forgotten"
    assert set(found) <= {(2, 1), (2, 3)}


@pytest.mark.parametrize("there", ["resident", "under way"])
def test_what_has_come_meanwhile_is_not_promoted(there: str) -> None:
    brain = _brain(1)
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
        brain.plan(routing_of(layer, [[1, 2]]), view_of([], SLOTS, MODEL.num_moe_layers))
        s.ahead.moves, s.ahead.moves_cost_ns = (moves, 0) if layer == 0 else (0, 0)
        start = 10_000 + (200 + taken_ns if layer else 0)
        end = start + 200  # as estimated: two experts of 100
        brain.learn(routing_of(layer, [[1, 2]]), LayerReport(layer, start, end, 2, 0, 0))


def test_what_moving_costs_is_learned_from_layers_with_and_without() -> None:
    brain = _brain(1)
    for _ in range(8):
        _learn(brain, moves=0, taken_ns=50)
    for _ in range(7):
        _learn(brain, moves=1, taken_ns=90)
    assert brain.state.learned.moving_more_ns == 0, "too few were seen"
    _learn(brain, moves=1, taken_ns=90)
    assert brain.state.learned.moving_more_ns == pytest.approx(40, abs=2)


def test_moves_that_seem_to_help_cost_nothing() -> None:
    brain = _brain(1)
    for _ in range(8):
        _learn(brain, moves=0, taken_ns=90)
        _learn(brain, moves=1, taken_ns=50)
    assert brain.state.learned.moving_more_ns == 0


def test_the_cost_is_forgotten_where_nothing_moves() -> None:
    brain = _brain(1)
    brain.state.learned.moving_more_ns = 1_000_000
    brain.state.learned.still_tokens = 1
    _learn(brain, moves=0, taken_ns=50)
    assert 999_000 < brain.state.learned.moving_more_ns < 1_000_000
    brain.state.learned.moving_more_ns = 2
    for _ in range(2):
        _learn(brain, moves=0, taken_ns=50)
    assert brain.state.learned.moving_more_ns == 0


def test_other_steps_begin_anew() -> None:
    brain = _brain(1)
    _learn(brain, moves=0, taken_ns=50)
    s = brain.state
    s.learned.still_tokens, s.learned.moving_more_ns = 7, 500_000
    _learn(brain, moves=0, taken_ns=80)
    assert (s.learned.still_tokens, s.learned.stills, s.learned.still_ns) == (1, 1, 80)
    assert s.learned.moving_more_ns == 0, "what a prompt taught says nothing of decoding"


def test_a_learned_cost_counts_against_every_move() -> None:
    brain = _brain(1)
    brain.state.learned.moving_more_ns = 70
    brain.plan(routing_of(0, [[1, 2]]), view_of([], SLOTS, MODEL.num_moe_layers))
    room = int(brain.state.ahead.max_background)
    delays = brain.state.ahead.delays[: room + 1].tolist()
    assert room > 0
    assert delays[0] == 0
    assert all(delay >= 70 for delay in delays[1:])
