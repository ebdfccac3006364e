"""Do policies written in Python see what compiled ones see, and do answers reach the plan?"""

from __future__ import annotations

import numpy as np
import pytest
from brain_parts import numbers_of

from made_up import exact_belief, routing_of, stated_physics, view_of
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.layer_plan import Move
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import LayerReport
from moesaic.core.routing import ExpertId, Forecast
from moesaic.core.view import Flight
from moesaic.policies.brain import Brain
from moesaic.policies.cache.classic import Lru, Pinned
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.prefetch.next_layer import NoPrefetch
from moesaic.policies.records import PLAN_HEADER
from moesaic.policies.rule_calls import schedule_rule
from moesaic.policies.schedule.base import Assignment, Schedule, Work
from moesaic.policies.schedule.best_split import BestSplit, split_in_order
from moesaic.policies.shape import Shape
from moesaic.policies.timelines import ABSENT, EXPERT, LOAD, READY, TRANSFER

LAYERS, EXPERTS, SLOTS = 3, 6, 6
BELIEF = exact_belief(stated_physics(lambda t: 1, lambda t: 5000 * t, transfer=20))


class Stated(Schedule):
    """Assigns what it was made with, and keeps what it was asked."""

    def __init__(self, found: Assignment) -> None:
        self.found, self.asked = found, list[Work]()

    def assign(self, work: Work) -> Assignment:
        self.asked.append(work)
        return self.found


class ListedPrefetch(Prefetch):
    lookahead = 2

    def __init__(self, *wanted: ExpertId) -> None:
        self.wanted, self.seen = list(wanted), list[Outlook]()

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        self.seen.append(outlook)
        return self.wanted


def brain_of(schedule: Schedule, prefetch: Prefetch, promote: bool = False) -> Brain:
    cache = Lru(LAYERS, EXPERTS, SLOTS)
    shape = Shape(LAYERS, EXPERTS, 2)
    return Brain(shape, BELIEF, schedule, cache, prefetch, SLOTS, promote=promote, checked=True)


def test_a_schedule_sees_the_layer_and_its_answer_is_the_plan() -> None:
    schedule = Stated(Assignment((4, 0), (2, 5), (4,), 777))
    brain = brain_of(schedule, NoPrefetch())
    view = view_of([(1, 0), (1, 5)], SLOTS)
    plan = brain.decide(routing_of(1, [[0, 4], [4, 2], [4, 5]]), view)
    (work,) = schedule.asked
    assert (work.layer, work.n) == (1, 4)
    assert work.belief is BELIEF
    assert work.view is view
    assert work.lanes[TRANSFER] == 20
    experts, loads, ready = work.table[:, :4].tolist()
    assert (EXPERT, LOAD, READY) == (0, 1, 2)
    assert experts[0] == 4
    assert sorted(experts) == [0, 2, 4, 5]
    assert loads == [3, 1, 1, 1]
    assert [ready[experts.index(e)] for e in (0, 5, 2, 4)] == [0, 0, ABSENT, ABSENT]
    assert plan.queues == {GPU: (4, 0), CPU: (2, 5)}
    assert [(move.layer, move.expert) for move in plan.transfers] == [(1, 4)]
    words = brain.state.decision.plan[:PLAN_HEADER].tolist()
    assert words == [2, 2, 1, 777]


def forecast(layer: int, *experts: int, step: int = 0) -> Forecast:
    scores = np.array([[0.5, 0.25]], dtype=np.float32)
    return Forecast(layer, np.array([experts]), scores, step)


def proposed(prefetch: ListedPrefetch, promote: bool = False) -> tuple[Brain, tuple[Move, ...]]:
    """Layer 0 of a pass: the GPU is busy for a while, an expert of layer 2 is coming."""
    brain = brain_of(BestSplit(), prefetch, promote)
    view = view_of([(0, 0), (0, 1)], SLOTS, flight=Flight(2, 3, 15), gpu_busy_ns=200)
    brain.decide(routing_of(0, [[0, 1]]), view)
    return brain, brain.look_ahead([forecast(1, 4, 5), forecast(2, 2, 3)])


def test_a_prefetch_policy_sees_the_layers_to_come() -> None:
    prefetch = ListedPrefetch()
    brain, moves = proposed(prefetch)
    assert moves == ()
    (outlook,) = prefetch.seen
    assert (outlook.layer, outlook.expected_rule) == (0, schedule_rule(split_in_order))
    assert [each.layer for each in outlook.forecasts] == [1, 2]
    assert [each.ranked.tolist() for each in outlook.forecasts] == [[[4, 5]], [[2, 3]]]
    assert outlook.coming == (ExpertId(2, 3),)
    assert np.argwhere(outlook.resident).tolist() == [[0, 0], [0, 1]]
    assert outlook.belief is BELIEF
    assert outlook.trust == (1.0, 1.0)
    assert outlook.link_free_ns == 15, "when the expert that is coming has come"
    assert len(outlook.starts) == 2
    assert len(outlook.delays) == int(brain.state.ahead.max_background) + 1
    assert (outlook.lanes == brain.state.ahead.lanes).all()
    assert outlook.miss_rate == brain.state.learned.miss_rate


def test_what_it_proposes_is_moved_best_first_as_far_as_there_is_time() -> None:
    _, moves = proposed(ListedPrefetch(ExpertId(2, 2), ExpertId(1, 5)))
    assert [(move.layer, move.expert) for move in moves] == [(2, 2), (1, 5)][: len(moves)]
    assert moves


def test_a_forecast_that_is_trusted_by_its_maker_is_passed_on_so() -> None:
    prefetch = ListedPrefetch()
    brain = brain_of(BestSplit(), prefetch)
    brain.state.predictor.trust[:] = [0.25, 0.125]
    brain.decide(routing_of(0, [[0, 1]]), view_of([(0, 0), (0, 1)], SLOTS))
    known = forecast(2, 2, 3)
    known = Forecast(known.layer, known.ranked, known.scores, 0, 0.75)
    brain.look_ahead([forecast(1, 4, 5), known])
    assert prefetch.seen[0].trust == (0.25, 0.75)


def test_forecasts_are_believed_by_their_distance() -> None:
    """Only the layer after the next is forecast: its trust and its start count."""
    prefetch = ListedPrefetch()
    brain = brain_of(BestSplit(), prefetch)
    brain.state.predictor.trust[:] = [0.25, 0.125]
    brain.decide(routing_of(0, [[0, 1]]), view_of([(0, 0), (0, 1)], SLOTS))
    brain.look_ahead([forecast(2, 2, 3)])
    (outlook,) = prefetch.seen
    assert outlook.trust == (0.125,)
    assert outlook.starts.tolist() == [int(brain.state.ahead.starts[1])]


def test_without_a_look_ahead_or_time_for_it_nothing_is_asked() -> None:
    idle = ListedPrefetch(ExpertId(1, 4))
    idle.lookahead = 0
    assert proposed(idle)[1] == ()
    assert not idle.seen
    busy = ListedPrefetch(ExpertId(1, 4))
    brain = brain_of(BestSplit(), busy)
    view = view_of([(0, 0), (0, 1)], SLOTS, flight=Flight(2, 3, 10**9))
    brain.decide(routing_of(0, [[0, 1]]), view)
    assert brain.look_ahead([forecast(1, 4, 5)]) == ()
    assert not busy.seen


def test_a_pinned_cache_has_no_space_for_prefetches() -> None:
    with pytest.raises(ImpossibleSetting, match="a pinned cache never gives up a slot"):
        Brain(Shape(1, 4, 2), BELIEF, BestSplit(), Pinned(1, 4, 2), ListedPrefetch(), 2)


def test_nothing_is_learned_of_a_layer_that_was_not_decided() -> None:
    brain = brain_of(BestSplit(), NoPrefetch())
    before = numbers_of(brain.state)
    brain.learn(routing_of(0, [[0, 1]]), LayerReport(0, 100, 900, 2, 1, 0))
    assert numbers_of(brain.state) == before
    assert brain.look_ahead() == ()
