"""Lanes that share a host: do they slow each other down as much as they should, and no more?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from made_up import small_machine, small_model
from moesaic.core.report import Timeline
from moesaic.hardware.machine_spec import HostSpec
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Task
from moesaic.machines.sim.resources import PriorityResource, Resource
from moesaic.machines.sim.sharing_lane import SharingLane


def lanes(*shares: float) -> tuple[Clock, list[SharingLane], Timeline]:
    by_name = {f"lane {number}": round(1000 * share) for number, share in enumerate(shares)}
    return drawing_on(Resource(by_name))


def drawing_on(*resources: Resource) -> tuple[Clock, list[SharingLane], Timeline]:
    """The lanes that these resources name, each drawing on those that name it."""
    clock, timeline = Clock(), Timeline()
    names = dict.fromkeys(name for resource in resources for name in resource.shares)
    drawn = {name: [r for r in resources if name in r.shares] for name in names}
    made = [SharingLane(name, clock, timeline, mine) for name, mine in drawn.items()]
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


def test_some_lanes_are_served_first_and_the_others_share_what_is_left() -> None:
    """The copy takes 400 of 1000 at full speed; readers that want 800 and 400 have 600 left, half
    of what they want, until the copy has ended: then they have 1000 of 1200."""
    resource = PriorityResource({"copy": 400, "cpu": 800, "dimm": 400}, first=["copy"])
    clock, (copy, cpu, dimm), _ = drawing_on(resource)
    moved, read, near = Task("transfer", 500), Task("expert", 1000), Task("expert", 1000)
    copy.submit(moved)
    cpu.submit(read)
    dimm.submit(near)
    assert run(clock, moved, read, near) == [500, 500 + 900, 500 + 900]


def test_who_is_served_first_slows_his_like_only() -> None:
    """Two copies of 800 have 1000 of 1600 and leave nothing: the reader stands still till the
    first has ended at 160, and then has 200 of the 500 it wants till the other ends at 360."""
    resource = PriorityResource({"a": 800, "b": 800, "cpu": 500}, first=["a", "b"])
    clock, (a, b, cpu), _ = drawing_on(resource)
    short, long, read = Task("transfer", 100), Task("transfer", 300), Task("expert", 1000)
    cpu.submit(read)
    a.submit(short)
    b.submit(long)
    assert run(clock, short, long, read) == [160, 360, 360 + 920]


def test_a_lane_is_as_slow_as_its_scarcest_resource() -> None:
    """The CPU shares a channel with one link (1500 of 1000) and a DIMM with another (2000)."""
    channel = Resource({"cpu": 1000, "pcie": 500})
    dimm = Resource({"cpu": 1000, "dimm-link": 1000})
    clock, (cpu, pcie, dimm_link), _ = drawing_on(channel, dimm)
    read, copy, relayout = Task("expert", 600), Task("transfer", 600), Task("transfer", 100)
    cpu.submit(read)
    pcie.submit(copy)
    dimm_link.submit(relayout)
    # The copy never feels the DIMM: 600 at 2/3 take 900. The CPU is at half speed until the
    # relayout ends at 200 (100 done), at 2/3 until 900 (466 whole ones more), then alone.
    assert run(clock, read, copy, relayout) == [900 + 34, 900, 200]


@pytest.mark.parametrize("shares", [(0.0, 0.0, 0.0, 0.0), (0.3, 0.3, 0.2, 0.2)])
def test_a_host_with_enough_of_everything_changes_no_layer(
    shares: tuple[float, float, float, float],
) -> None:
    """Except that a layer waits for the look-ahead: here that costs nothing."""
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
