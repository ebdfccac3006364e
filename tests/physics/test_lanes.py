"""Do experts and transfers take the time that closed formulas say?"""

from __future__ import annotations

import pytest
from simple_runs import (
    CPU_NS,
    FIRST_NS,
    GPU_NS,
    MOVE_NS,
    begin,
    machine_with,
    plain_physics,
    run_layer,
    time_of,
)

from moesaic.core.layer_plan import Move
from moesaic.machines.sim.machine import STAGING

ALL = [(0, e) for e in range(8)]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_cached_experts_follow_each_other_on_the_gpu(n: int) -> None:
    assert time_of(machine_with(ALL), [3] * n, gpu=tuple(range(n))) == n * GPU_NS


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_first_expert_of_a_layer_is_slower_on_the_cpu(n: int) -> None:
    loads = [2] * n
    expected = FIRST_NS + n * CPU_NS * 2
    assert time_of(machine_with(), loads, cpu=tuple(range(n))) == expected


def test_every_layer_has_a_first_expert_again() -> None:
    machine = machine_with()
    begin(machine, [[1, 1], [1, 1]])
    took = [run_layer(machine, cpu=(0, 1), layer=at) for at in range(2)]
    assert [r.end_ns - r.start_ns for r in took] == [FIRST_NS + 2 * CPU_NS] * 2


def test_gpu_and_cpu_work_side_by_side() -> None:
    took = time_of(machine_with(ALL), [1] * 7, gpu=(0, 1, 2, 3, 4, 5), cpu=(6,))
    assert took == max(6 * GPU_NS, FIRST_NS + CPU_NS)


def test_the_layer_waits_for_its_shared_experts() -> None:
    machine = machine_with(ALL, physics=plain_physics(attention=20, shared=35))
    begin(machine, [[1, 1]])
    report = run_layer(machine, cpu=(0,), gpu=(1,))
    assert report.start_ns == 20, "attention is over before the experts begin"
    assert report.end_ns - report.start_ns == max(35 + GPU_NS, FIRST_NS + CPU_NS)


@pytest.mark.parametrize("keep", [True, False])
def test_a_transferred_expert_is_computed_when_it_has_arrived(keep: bool) -> None:
    machine = machine_with()
    begin(machine, [[1]])
    report = run_layer(machine, gpu=(0,), transfers=(Move(0, 0, None, keep),))
    assert report.end_ns - report.start_ns == MOVE_NS + GPU_NS
    assert bool(machine.memory.resident[0, 0]) is keep
    assert machine.memory.occupied == int(keep)


@pytest.mark.parametrize(("gpu_ns", "n"), [(10, 3), (100, 4), (250, 4), (250, 1)])
def test_transfers_and_gpu_form_a_pipeline(gpu_ns: int, n: int) -> None:
    """A two-machine flow shop with equal jobs: one of each, and n - 1 times the slower."""
    machine = machine_with(physics=plain_physics(gpu_ns=gpu_ns))
    begin(machine, [[1] * n])
    moves = tuple(Move(0, e) for e in range(n))
    report = run_layer(machine, gpu=tuple(range(n)), transfers=moves)
    expected = MOVE_NS + gpu_ns + (n - 1) * max(MOVE_NS, gpu_ns)
    assert report.end_ns - report.start_ns == expected


def test_cached_experts_are_computed_while_others_arrive() -> None:
    machine = machine_with(ALL[:3])
    begin(machine, [[1] * 4])
    report = run_layer(machine, gpu=(0, 1, 2, 3), transfers=(Move(0, 3),))
    assert report.end_ns - report.start_ns == max(3 * GPU_NS, MOVE_NS) + GPU_NS


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_experts_used_once_are_double_buffered(n: int) -> None:
    """The GPU is busy with cached experts for B, longer than two transfers. Two staged experts
    arrive meanwhile; the third may start when the first is computed, at B + g, and from there
    the link (m > g) sets the pace: B + 2 g + (n - 2) m. Kept ones wait for
    nothing."""
    assert STAGING == 2
    cached, gpu_ns = tuple(range(6, 12)), 60
    busy = len(cached) * gpu_ns
    took = {}
    for keep in (False, True):
        machine = machine_with([(0, e) for e in cached], physics=plain_physics(gpu_ns=gpu_ns))
        begin(machine, [[1] * n + [0] * (6 - n) + [1] * 6])
        moves = tuple(Move(0, e, None, keep) for e in range(n))
        report = run_layer(machine, (*cached, *range(n)), (), moves)
        took[keep] = report.end_ns - report.start_ns
    assert took[False] == busy + (n * gpu_ns if n <= 2 else 2 * gpu_ns + (n - 2) * MOVE_NS)
    assert took[True] == max(busy + n * gpu_ns, n * MOVE_NS + gpu_ns)
