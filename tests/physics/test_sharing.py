"""Lanes that share a host: do they slow each other down as much as they should, and no more?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from invented import small_machine, small_model
from moesaic.core.report import Timeline
from moesaic.hardware.spec import HostSpec
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Task
from moesaic.machines.sim.sharing import Pool, SharingLane


def lanes(*shares: float) -> tuple[Clock, list[SharingLane], Timeline]:
    clock, timeline, pool = Clock(), Timeline(), Pool()
    names = [f"lane {number}" for number in range(len(shares))]
    made = [
        SharingLane(name, clock, timeline, pool, round(1000 * share))
        for name, share in zip(names, shares, strict=True)
    ]
    return clock, made, timeline


def run(clock: Clock, *tasks: Task) -> list[int]:
    while not all(task.done for task in tasks):
        clock.step()
    return [task.end_ns for task in tasks]


def test_alone_a_lane_takes_its_time() -> None:
    clock, (lane, _), _ = lanes(1.0, 1.0)
    lane.submit(task := Task("expert", 1000))
    assert run(clock, task) == [1000]


def test_shares_within_the_whole_do_not_matter() -> None:
    clock, (one, other), _ = lanes(0.5, 0.5)
    tasks = [Task("expert", 1000), Task("expert", 700)]
    one.submit(tasks[0])
    other.submit(tasks[1])
    assert run(clock, *tasks) == [1000, 700]


def test_two_that_need_everything_take_turns_in_effect() -> None:
    """Both at half speed until the short one ends at 1400; the long one has 300 left then."""
    clock, (one, other), _ = lanes(1.0, 1.0)
    tasks = [Task("expert", 1000), Task("expert", 700)]
    one.submit(tasks[0])
    other.submit(tasks[1])
    assert run(clock, *tasks) == [1700, 1400]


def test_a_lane_that_joins_late_slows_what_is_left() -> None:
    """400 ns alone, then both at 1/1.5 of the speed: 600 left take 900."""
    clock, (one, other), _ = lanes(1.0, 0.5)
    first, second = Task("expert", 1000), Task("transfer", 2000)
    one.submit(first)
    clock.advance(400)
    other.submit(second)
    assert run(clock, first, second) == [1300, 400 + 900 + 1400]


def test_a_lane_is_busy_as_long_as_its_spans_say() -> None:
    clock, (one, other), timeline = lanes(1.0, 1.0)
    tasks = [Task("expert", 1000), Task("expert", 700)]
    one.submit(tasks[0])
    other.submit(tasks[1])
    run(clock, *tasks)
    assert {span.lane: span.end_ns - span.start_ns for span in timeline.spans} == {
        "lane 0": 1700,
        "lane 1": 1400,
    }
    assert (one.busy_ns, other.busy_ns) == (1700, 1400)


@pytest.mark.parametrize("shares", [(0.0, 0.0, 0.0, 0.0), (0.3, 0.3, 0.2, 0.2)])
def test_a_host_with_enough_of_everything_changes_no_layer(
    shares: tuple[float, float, float, float],
) -> None:
    """Except that a layer waits for whoever thinks ahead: here that costs nothing."""
    machine = small_machine()
    free = replace(machine.planner, lookahead_us=0.0, lookahead_per_token_us=0.0)
    machine = replace(machine, planner=free)
    settings = Settings(small_model(), machine, tokens=8, warmup=2, profile_tokens=8)
    source = choose_workload(None, settings).source
    alone = simulate(settings, source).latencies_s
    host = replace(machine, host=HostSpec(*shares))
    assert simulate(replace(settings, machine=host), source).latencies_s == alone


def test_a_crowded_host_is_slower_but_not_slower_than_one_thing_at_a_time() -> None:
    machine = small_machine()
    settings = Settings(small_model(), machine, tokens=16, warmup=2, profile_tokens=8)
    source = choose_workload(None, settings).source
    crowded = replace(machine, host=HostSpec(1.0, 1.0, 1.0, 1.0))
    alone = simulate(settings, source)
    shared = simulate(replace(settings, machine=crowded), source)
    assert alone.mean_s < shared.mean_s < 4 * alone.mean_s
