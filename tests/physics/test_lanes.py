"""Do experts and transfers take the time that closed formulas say?"""

from __future__ import annotations

from dataclasses import replace

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
    spans,
    time_of,
)

from moesaic.core.errors import BadMachine
from moesaic.core.layer_plan import Move
from moesaic.core.view import Flight
from moesaic.hardware.link_use import LinkUseSpec
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_writer import machine_toml
from moesaic.machines.sim import SimMachine
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


# Does the simulator charge what a description states of the link's use, and nothing without it?

ATTENTION = 10
PLAIN = load_machine("h200-emr16")


def used(use: LinkUseSpec) -> SimMachine:
    physics = plain_physics(attention=ATTENTION)
    return machine_with(physics=replace(physics, machine=replace(physics.machine, pcie_use=use)))


def test_the_first_demand_of_a_layer_costs_more() -> None:
    machine = used(LinkUseSpec(demand_us=0.02))
    begin(machine, [[1, 1]])
    report = run_layer(machine, (0, 1), (), (Move(0, 0), Move(0, 1)))
    assert report.end_ns - report.start_ns == 20 + 2 * MOVE_NS + GPU_NS


def test_a_layer_is_handed_over_later_while_the_link_copies() -> None:
    """And later still where it copies from the CPU's caches."""
    use = LinkUseSpec(busy_handover_us=0.003, cached_handover_us=0.008, cached_factor=2.0)
    expected = {(): 0, (Move(2, 3),): 3, (Move(0, 0),): 8}
    for background, longer in expected.items():
        machine = used(use)
        begin(machine, [[1], [1]])
        report = run_layer(machine, cpu=(0,), background=background)
        machine.route(1)
        assert machine.clock.now - report.end_ns == ATTENTION + longer


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_a_copy_from_the_cpus_caches_is_slow_and_slows_the_cpu(dtype: str) -> None:
    """Alone the CPU takes 57; at four fifths of its speed 72."""
    use = LinkUseSpec(cached_factor=3.0, cached_cpu_factor={"bf16": 1.25})
    physics = replace(plain_physics(), expert_dtype=dtype)
    physics = replace(physics, machine=replace(physics.machine, pcie_use=use))
    machine = machine_with(physics=physics)
    begin(machine, [[1]])
    report = run_layer(machine, cpu=(0,), background=(Move(0, 0),))
    alone = FIRST_NS + CPU_NS
    assert report.end_ns - report.start_ns == (72 if dtype == "bf16" else alone)
    machine.finish()
    machine.clock.advance(10 * MOVE_NS)
    (copy,) = spans(machine, "prefetch")
    assert copy.end_ns - copy.start_ns == 3 * MOVE_NS


def test_a_copy_from_memory_is_not_slower() -> None:
    machine = used(LinkUseSpec(cached_factor=3.0, cached_cpu_factor={"bf16": 2.0}))
    begin(machine, [[1]])
    report = run_layer(machine, cpu=(0,), background=(Move(1, 5),))
    assert report.end_ns - report.start_ns == FIRST_NS + CPU_NS
    machine.finish()
    machine.clock.advance(10 * MOVE_NS)
    (copy,) = spans(machine, "prefetch")
    assert copy.end_ns - copy.start_ns == MOVE_NS


@pytest.mark.parametrize("submitted", [1, 2])
def test_what_was_submitted_is_not_dropped(submitted: int) -> None:
    """The first copy has 33 left when layer 1 is routed; the others have not begun."""
    machine = used(LinkUseSpec(submitted_copies=submitted))
    begin(machine, [[1], [1]])
    run_layer(machine, cpu=(0,), background=tuple(Move(2, e) for e in range(4)))
    machine.route(1)
    left = MOVE_NS - FIRST_NS - CPU_NS - ATTENTION
    flights = (Flight(2, 0, left), Flight(2, 1, left + MOVE_NS))[:submitted]
    assert machine.view(1).in_flight == flights
    assert machine.view(1).pcie_busy_ns == flights[-1].remaining_ns
    machine.clock.advance(10 * MOVE_NS)
    assert [span.expert for span in spans(machine, "prefetch")] == [0, 1][:submitted]
    assert machine.memory.resident[2].sum() == submitted


def described(use: LinkUseSpec) -> MachineSpec:
    spec = replace(PLAIN, pcie_use=use)
    return replace(spec, sources=dict.fromkeys(spec.values(), "measured"))


def test_a_description_with_it_reads_back() -> None:
    spec = described(LinkUseSpec(16.0, 2, 12.0, 32.0, 2.1, {"bf16": 1.3, "int4": 1.8}))
    assert parse_machine(machine_toml(spec).encode(), "mine") == spec
    assert "pcie_use" not in machine_toml(PLAIN)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("value = 2.1", "value = 0.9", "a factor of 1 or more"),
        ("submitted_copies = { value = 2", "submitted_copies = { value = 1.5", "a whole number"),
        ("int4 = { value = 1.8", "int3 = { value = 1.8", "unknown field"),
    ],
)
def test_what_cannot_be_is_refused(before: str, after: str, expected: str) -> None:
    text = machine_toml(described(LinkUseSpec(16.0, 2, 12.0, 32.0, 2.1, {"int4": 1.8})))
    assert before in text
    with pytest.raises(BadMachine, match=expected):
        parse_machine(text.replace(before, after, 1).encode(), "mine")
