"""Do time, bytes and slots add up over whole runs, and do equal runs give equal bits?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closed_loop import assembled, chosen, play
from made_up import policy_combinations, random_steps, small_machine, small_model
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.offloading import GPU, PCIE
from moesaic.core.report import LayerReport, Span, busy_ns
from moesaic.core.routing import ExpertId
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules

MODEL = small_model(layers=3, experts=6, top_k=2, dense=1)


def physics_of(model: ModelSpec = MODEL) -> Physics:
    return Physics(small_machine(), model)


def spans_of(policies: PolicySet, seed: int = 3) -> list[Span]:
    steps = random_steps(seed, 6, MODEL)
    machine, brain = assembled(physics_of(), 9, policies, steps)
    play(machine, brain, steps, planning_ns=1500)
    return machine.timeline.spans


def test_two_runs_give_the_same_spans_and_times_are_integers() -> None:
    first, second = spans_of(chosen()), spans_of(chosen())
    assert first == second
    assert len(first) > 80
    assert all(type(time) is int for span in first for time in (span.start_ns, span.end_ns))
    assert spans_of(chosen(), seed=4) != first


def test_a_lane_does_one_thing_at_a_time() -> None:
    spans = spans_of(chosen(prefetch="next-layer"))
    for lane in {span.lane for span in spans}:
        mine = sorted((s.start_ns, s.end_ns) for s in spans if s.lane == lane)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))


def test_bytes_and_busy_time_add_up() -> None:
    steps = random_steps(5, 8, MODEL)
    physics = physics_of()
    machine, brain = assembled(physics, 9, chosen(), steps)
    reports = play(machine, brain, steps)
    machine.clock.advance(10 * physics.transfer_ns)  # whatever is still under way
    spans = machine.timeline.spans
    moves = [s for s in spans if s.lane == PCIE]
    assert machine.bytes_moved == len(moves) * physics.expert_bytes
    assert machine.lanes[PCIE].busy_ns == len(moves) * physics.transfer_ns
    demanded = sum(layer.bytes_moved for report in reports for layer in report.layers)
    assert demanded == sum(s.kind == "transfer" for s in moves) * physics.expert_bytes
    for name, lane in machine.lanes.items():
        assert lane.busy_ns == busy_ns(spans, name) <= machine.clock.now


def test_steps_follow_each_other_and_layers_lie_within_them() -> None:
    steps = random_steps(6, 4, MODEL)
    machine, brain = assembled(physics_of(), 9, chosen(), steps)
    reports = play(machine, brain, steps, planning_ns=700)
    assert [r.start_ns for r in reports[1:]] == [r.end_ns for r in reports[:-1]]
    assert machine.planning_ns == 700 * 3 * 4
    for report in reports:
        times = [t for layer in report.layers for t in (layer.start_ns, layer.end_ns)]
        assert [report.start_ns, *times, report.end_ns] == sorted(
            [report.start_ns, *times, report.end_ns]
        )


class WatchedMachine(SimMachine):
    """Counts hits by itself, and looks at the memory whenever a layer has ended."""

    counted: int = 0

    def start(self, plan: LayerPlan) -> None:
        queues = [e for queue in plan.queues.values() for e in queue]
        hits = sum(int(self.memory.resident[plan.layer, e]) for e in queues)
        self.expected = (len(queues), hits)
        super().start(plan)

    def wait(self) -> LayerReport:
        report = super().wait()
        assert (report.active, report.hits) == self.expected
        memory = self.memory
        held = memory.resident.sum(axis=1).astype(int)
        for flight in self.view(report.layer).in_flight:
            held[flight.layer] += 1
        assert memory.held.tolist() == held.tolist()
        assert memory.occupied == held.sum() <= memory.slots
        self.counted += 1
        return report


@settings(max_examples=120)
@given(
    st.sampled_from(policy_combinations()),
    st.integers(0, 2**32 - 1),
    st.integers(0, 18),
    st.sampled_from([1, 4]),
    st.booleans(),
    st.sampled_from([0, 9_000, 60_000]),
)
def test_slots_are_never_exceeded(
    names: tuple[str, str, str],
    seed: int,
    slots: int,
    tokens: int,
    per_layer: bool,
    lookahead_ns: int,
) -> None:
    """Every plan is also checked: a policy that plans against a stale view would be caught."""
    if slots == 0 and schedules.load(names[0]).needs_slots:
        return
    steps = random_steps(seed, 4, MODEL, tokens)
    pool = "per-layer" if per_layer else "global"
    policies = chosen(names[0], f"{names[1]}:pool={pool}", names[2])
    machine, brain = assembled(physics_of(), slots, policies, steps)
    watched = WatchedMachine(machine.physics, slots)
    watched.memory.place([ExpertId(*map(int, at)) for at in np.argwhere(machine.memory.resident)])
    play(watched, brain, steps, planning_ns=300, lookahead_ns=lookahead_ns)
    assert watched.counted == 4 * 3


@pytest.mark.parametrize("tokens", [1, 5])
def test_every_routed_token_is_computed_once(tokens: int) -> None:
    steps = random_steps(2, 5, MODEL, tokens)
    machine, brain = assembled(physics_of(), 7, chosen(), steps)
    play(machine, brain, steps)
    experts = [s for s in machine.timeline.spans if s.kind == "expert"]
    assert sum(s.tokens for s in experts) == 5 * 3 * tokens * MODEL.top_k
    assert {s.lane for s in experts} <= {GPU, "cpu"}
