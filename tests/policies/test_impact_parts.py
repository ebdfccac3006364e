"""A forecast layer as impact-driven prefetching values it, by hand: loads, surprises, weights."""

from __future__ import annotations

import numpy as np
import pytest
from brain_parts import LinkPrice
from drawn_work import work_of

from moesaic.policies.prefetch.impact import (
    CANDIDATE,
    mark_coming,
    prepare_layer,
    rank_by_impact,
)
from moesaic.policies.records import IMPACT_ROWS, MAX_PROPOSED
from moesaic.policies.rule_calls import Rule, schedule_rule
from moesaic.policies.schedule.base import Work
from moesaic.policies.schedule.gpu_only import all_on_gpu
from moesaic.policies.schedule.hybrid import hybrid
from moesaic.policies.schedule.static import stay_in_place
from moesaic.policies.timelines import ABSENT, EXPERT, LOAD, READY, Ints


def _prepared(
    trust: float, miss_rate: float, missing: tuple[int, ...] = (), experts: int = 12
) -> tuple[Ints, float]:
    """Experts 0 to 3 are forecast with 3, 2, 1 and 1 tokens, one place is padding."""
    chosen = np.array([0, 1, 2, -1, 0, 1, 3, 0])
    resident = np.ones(experts, dtype=np.uint8)
    resident[list(missing)] = 0
    table, loads = np.full((4, experts), 7, dtype=np.int64), np.zeros(experts, dtype=np.int64)
    n, weight = prepare_layer(chosen, resident, trust, miss_rate, table, loads)
    assert n == 4
    assert table[EXPERT, :4].tolist() == [0, 1, 2, 3]
    assert table[LOAD, :4].tolist() == [3, 2, 1, 1]
    assert not loads.any(), "scratch is left as it was"
    return table[:, :4], weight


@pytest.mark.parametrize(
    ("trust", "miss_rate", "surprises"),
    [(1.0, 1.0, 0), (0.5, 0.0, 0), (0.5, 0.5, 1), (0.5, 1.0, 2), (0.25, 1.0, 3)],
)
def test_so_many_predictions_are_expected_to_be_wrong_and_missing(
    trust: float, miss_rate: float, surprises: int
) -> None:
    """Of four; those with the fewest tokens, and they are not proposed."""
    table, _ = _prepared(trust, miss_rate)
    assert table[READY].tolist() == [0] * (4 - surprises) + [ABSENT] * surprises
    assert not table[CANDIDATE].any()


def test_what_is_missing_is_a_candidate_and_no_surprise() -> None:
    table, _ = _prepared(0.5, 0.5, missing=(1, 3))
    assert table[READY].tolist() == [0, ABSENT, ABSENT, ABSENT], "2 is the surprise"
    assert table[CANDIDATE].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("trust", "experts", "weight"),
    [(1.0, 12, 1.0), (0.5, 12, 0.5 - 2 / 8), (0.75, 4, 0.0), (0.875, 4, 0.375), (0.0, 12, 0.0)],
)
def test_an_impact_counts_as_predictions_are_right_less_who_has_to_go(
    trust: float, experts: int, weight: float
) -> None:
    """The wrong ones are shared among the experts that were not forecast, at least one."""
    assert _prepared(trust, 0.0, experts=experts)[1] == weight


def test_who_is_under_way_will_be_there() -> None:
    table, _ = _prepared(1.0, 0.0, missing=(1, 2))
    mark_coming(table, 4, 2)
    assert table[READY].tolist() == [0, ABSENT, 0, 0]
    mark_coming(table, 4, 9)
    assert table[READY].tolist() == [0, ABSENT, 0, 0]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((1.0, 0.5), [[0, 4], [1, 1], [1, 2]]),
        ((0.25, 0.5), [[1, 1], [1, 2]]),  # 25 against 75; then layer 0 has started
        ((1.0, 0.0), [[0, 4]]),
    ],
)
def test_proposals_arrive_one_transfer_after_the_other(
    weights: tuple[float, float], expected: list[list[int]]
) -> None:
    """Static experts: what is there when the layer starts saves the CPU's 50 a token, what comes
    later saves nothing. The link is free at 10 and takes 100: arrivals at 110, 210 and 310. Layer
    0 (from 200 on) gets one of its two, the one with more tokens, layer 1 (from 1000 on) both;
    impacts 100 there, 150 and 50 here, times the layers' weights."""
    work = work_of([3, 2, 1], [ABSENT] * 3, lambda t: 1, lambda t: 50 * t, transfer=100)
    layers = np.zeros((2, 4, 6), dtype=np.int64)
    for at, experts, loads in ((0, [4, 5], [2, 1]), (1, [1, 2], [3, 1])):
        layers[at, EXPERT, :2], layers[at, LOAD, :2] = experts, loads
        layers[at, READY, :2], layers[at, CANDIDATE, :2] = ABSENT, 1
    picks = np.zeros((4, 2), dtype=np.int64)
    count = rank_by_impact(
        schedule_rule(stay_in_place),
        0,
        np.array([2, 2]),
        layers,
        work.belief.tables,
        work.lanes,
        np.array([200, 1000]),
        10,
        np.zeros(5, dtype=np.int64),
        np.array(weights),
        np.zeros((IMPACT_ROWS, 6), dtype=np.int64),
        picks,
    )
    assert picks[:count].tolist() == expected


# Is the link's time priced by what its lateness costs the layers that want it?


def one_missing() -> Work:
    return work_of([1, 1], [ABSENT, 0], lambda t: 10, lambda t: 500, transfer=100)


def none_missing() -> Work:
    return work_of([1, 1], [0, 0], lambda t: 10, lambda t: 500, transfer=100)


def test_a_layer_that_waits_for_a_transfer_pays_the_whole_lateness() -> None:
    """The link is free at 30, a transfer takes 100, the next layer starts at 50: one transfer
    makes the link 80 late; a second could not start in time."""
    delays = LinkPrice([one_missing()], all_on_gpu).delays(30, 100, 50)
    assert delays == [0, 80]


@pytest.mark.parametrize(
    ("work", "rule"),
    [(one_missing(), stay_in_place), (none_missing(), all_on_gpu)],
    ids=["cpu", "hit"],
)
def test_lateness_is_free_where_the_link_is_idle(work: Work, rule: Rule) -> None:
    delays = LinkPrice([work], rule).delays(30, 100, 50)
    assert delays == [0, 0]


def test_the_price_is_the_mean_over_layers() -> None:
    """Half of the layers care."""
    works = [one_missing(), none_missing()] * 40
    (_, late) = LinkPrice(works, all_on_gpu).delays(30, 100, 50)
    assert late == pytest.approx(40, abs=2)


def test_what_ends_before_the_next_layer_is_free() -> None:
    price = LinkPrice([one_missing()], all_on_gpu)
    assert price.delays(0, 100, 230) == [0, 0, 0, 70]
    assert price.delays(50, 100, 50) == [0], "nothing can start in time"
    assert len(price.delays(0, 100, 10_000)) == MAX_PROPOSED + 1


def test_the_price_is_what_half_a_transfer_of_lateness_costs() -> None:
    """Moved, the expert is done at 110; 50 later that would be 160, and the CPU has it at 130: 20
    for 50. A layer later than that costs no more, which a price per nanosecond cannot say."""
    work = work_of([1], [ABSENT], lambda t: 10, lambda t: 130, transfer=100)
    assert LinkPrice([work], hybrid).delays(30, 100, 50) == [0, 31]


def test_what_the_cpu_does_now_is_over_when_later_layers_come() -> None:
    """A free CPU computes the missing expert sooner than the link brings it."""
    work = work_of([1], [ABSENT], lambda t: 10, lambda t: 60, transfer=100, cpu_free=1000)
    assert LinkPrice([work], hybrid).delays(30, 100, 50) == [0, 0]


def test_the_shortest_transfer_has_a_price_too() -> None:
    """Half of one nanosecond is counted as one."""
    work = work_of([1], [ABSENT], lambda t: 10, lambda t: 130, transfer=1)
    assert LinkPrice([work], all_on_gpu).delays(30, 100, 50) == [0, 80]


def test_from_the_33rd_layer_on_the_newest_weighs_one_in_32() -> None:
    """32 layers that do not care, then one that pays everything: 3199 late at 1/32, rounded down
    twice."""
    price = LinkPrice([none_missing()] * 32 + [one_missing()], all_on_gpu)
    assert price.delays(0, 3200, 1) == [0, 99]
