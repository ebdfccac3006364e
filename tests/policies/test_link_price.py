"""Is the link's time priced by what its lateness costs the layers that want it?"""

from __future__ import annotations

import pytest
from brain_parts import LinkPrice
from drawn_work import work_of

from moesaic.policies.records import MAX_PROPOSED
from moesaic.policies.rule_calls import Rule
from moesaic.policies.schedule.base import Work
from moesaic.policies.schedule.gpu_only import all_on_gpu
from moesaic.policies.schedule.hybrid import hybrid
from moesaic.policies.schedule.static import as_they_lie
from moesaic.policies.timelines import ABSENT


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
    [(one_missing(), as_they_lie), (none_missing(), all_on_gpu)],
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
