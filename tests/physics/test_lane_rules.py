"""Lanes, clock and shared resources one by one: who starts when, and what is said meanwhile."""

from __future__ import annotations

import pytest

from moesaic.core.report import Timeline
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Lane, Task
from moesaic.machines.sim.resources import PriorityResource, Resource
from moesaic.machines.sim.sharing_lane import SharingLane


def _lanes(*names: str) -> tuple[Clock, list[Lane]]:
    clock, timeline = Clock(), Timeline()
    return clock, [Lane(name, clock, timeline) for name in names]


def test_time_that_passes_includes_its_last_moment() -> None:
    clock, seen = Clock(), []
    clock.at(5, lambda: seen.append(clock.now))
    clock.at(6, lambda: seen.append(clock.now))
    clock.advance(5)
    assert (seen, clock.now) == ([5], 5)


def test_an_idle_lane_has_nothing_left_and_has_not_worked() -> None:
    clock, (lane,) = _lanes("gpu")
    assert (lane.remaining_ns, lane.worked_ns, lane.queued_ns()) == (0, 0, 0)
    lane.submit(Task("expert", 30))
    lane.submit(Task("expert", 7))
    clock.advance(10)
    assert (lane.remaining_ns, lane.worked_ns, lane.queued_ns()) == (20, 10, 27)
    clock.advance(100)
    assert (lane.remaining_ns, lane.worked_ns, lane.queued_ns()) == (0, 37, 0)


def test_a_task_may_wait_for_one_of_its_own_lane() -> None:
    """The end of the first lets the second start; the third still waits its turn."""
    clock, (lane,) = _lanes("gpu")
    first, second, third = (Task("expert", 10) for _ in range(3))
    second.after(first)
    for task in (first, second, third):
        lane.submit(task)
    clock.advance(15)
    assert lane.running is second
    clock.advance(100)
    assert [task.end_ns for task in (first, second, third)] == [10, 20, 30]


def test_what_a_task_waits_for_may_end_before_the_task_is_handed_over() -> None:
    clock, (link, gpu) = _lanes("pcie", "gpu")
    move, expert = Task("transfer", 10), Task("expert", 5)
    expert.after(move)
    link.submit(move)
    clock.advance(20)
    gpu.submit(expert)
    clock.advance(20)
    assert expert.end_ns == 25


def test_a_background_task_that_is_promoted_runs_once() -> None:
    clock, (link,) = _lanes("pcie")
    running, waiting = Task("prefetch", 10), Task("prefetch", 10)
    link.replace_background([running, waiting])
    link.wake()
    link.promote(waiting)
    clock.advance(100)
    assert (link.busy_ns, waiting.end_ns) == (20, 20)


def test_promoting_what_has_started_changes_nothing() -> None:
    clock, (link,) = _lanes("pcie")
    task = Task("prefetch", 10)
    link.replace_background([task])
    link.wake()
    link.promote(task)
    clock.advance(100)
    assert link.busy_ns == 10


@pytest.mark.parametrize("swapped", [False, True])
def test_the_scarcest_resource_counts_in_whatever_order(swapped: bool) -> None:
    """Half speed of one, two thirds of the other: half speed."""
    half = Resource({"cpu": 1000, "a": 1000})
    two_thirds = Resource({"cpu": 1000, "b": 500})
    resources = [two_thirds, half] if swapped else [half, two_thirds]
    clock, timeline = Clock(), Timeline()
    cpu = SharingLane("cpu", clock, timeline, resources)
    others = [
        SharingLane("a", clock, timeline, [half]),
        SharingLane("b", clock, timeline, [two_thirds]),
    ]
    for lane in others:
        lane.submit(Task("transfer", 10_000))
    cpu.submit(task := Task("expert", 600))
    clock.advance(1200)
    assert task.done
    assert task.end_ns == 1200


def test_a_lane_that_gets_nothing_stands_still_and_says_what_it_has_left() -> None:
    """The copy takes everything for 400; the reader had done 100 of its 1000 before."""
    resource = PriorityResource({"copy": 1000, "cpu": 500}, first=["copy"])
    clock, timeline = Clock(), Timeline()
    copy = SharingLane("copy", clock, timeline, [resource])
    cpu = SharingLane("cpu", clock, timeline, [resource])
    cpu.submit(read := Task("expert", 1000))
    clock.advance(100)
    copy.submit(Task("transfer", 400))
    assert cpu.remaining_ns == 900, "at best"
    clock.advance(399)
    assert not read.done
    clock.advance(2000)
    assert read.end_ns == 100 + 400 + 900


# Is what waits for the end of a moment done once, before time goes on, knowing everything?


def test_it_is_done_once_after_all_events_of_the_moment() -> None:
    clock, seen = Clock(), []

    def settle() -> None:
        seen.append(("settled", clock.now))

    def happen(name: str) -> None:
        seen.append((name, clock.now))
        clock.before_advancing(settle)

    for name in ("a", "b", "c"):
        clock.at(5, lambda name=name: happen(name))  # type: ignore[misc]
    clock.at(9, lambda: seen.append(("later", clock.now)))
    clock.advance(20)
    assert seen == [("a", 5), ("b", 5), ("c", 5), ("settled", 5), ("later", 9)]


def test_it_may_cause_events_of_the_same_moment() -> None:
    clock, seen = Clock(), []
    clock.before_advancing(lambda: clock.at(clock.now, lambda: seen.append(clock.now)))
    clock.at(7, lambda: seen.append(clock.now))
    clock.advance(10)
    assert seen == [0, 7]


def test_it_is_done_where_nothing_else_happens() -> None:
    clock, seen = Clock(), []
    clock.before_advancing(lambda: seen.append(clock.now))
    clock.advance(3)
    assert (seen, clock.now) == ([0], 3)
