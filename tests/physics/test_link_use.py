"""Does the simulator charge what a description states of the link's use, and nothing without it?"""

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
)

from moesaic.core.errors import BadMachine
from moesaic.core.layer_plan import Move
from moesaic.core.view import Flight
from moesaic.hardware.link_use import LinkUseSpec
from moesaic.hardware.machine_reader import load_machine, parse_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_writer import machine_toml
from moesaic.machines.sim import SimMachine

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
