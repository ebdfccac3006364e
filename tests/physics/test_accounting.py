"""Do time, bytes and slots add up over whole runs, and do equal runs give equal bits?"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closed_loop import assembled, chosen, play
from made_up import policy_combinations, random_steps, small_machine, small_model
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.offloading import GPU, PCIE
from moesaic.core.report import LayerReport, Span, Timeline, busy_ns
from moesaic.core.routing import ExpertId
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_set import PolicySet, with_options
from moesaic.policies.schedule import schedules
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

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


# Does what a run reports about itself hold: shares of time at most 1, the floor below the time?

WITHOUT_DENSE = small_model(layers=3, experts=8, top_k=2)


def run(
    seed: int = 0, link_gb_s: float = 2.0, timeline: Timeline | None = None, **changes: object
) -> Result:
    machine = small_machine()
    machine = replace(machine, pcie=replace(machine.pcie, bandwidth_gb_s=link_gb_s, latency_us=0.0))
    policies = PolicySet.of(schedule="hybrid", cache="lru")
    settings = Settings(
        WITHOUT_DENSE,
        machine,
        policies=policies,
        cache_ratio=0.5,
        profile_tokens=8,
        tokens=4,
        warmup=2,
    )
    calibration = default_calibration(WITHOUT_DENSE.name, WITHOUT_DENSE.num_experts)
    trace = synthesize(calibration, TraceShape.of(WITHOUT_DENSE), 100, seed=seed, phase="decode")
    return simulate(with_options(settings, changes), trace, timeline)


@pytest.mark.parametrize("link_gb_s", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_no_lane_works_longer_than_the_run_and_the_floor_stays_below(
    link_gb_s: float, tokens: int
) -> None:
    """The link is never idle: what was under way before the measurement, or still is when it
    ends, may count only for the part within."""
    for seed in range(6):
        found = run(seed, link_gb_s, schedule="gpu-only", prefetch="next-layer", tokens=tokens)
        assert max(found.utilization.values()) <= 1.0
        assert found.floor_s <= found.elapsed_s + 1e-7


def test_a_busy_link_is_seen_as_busy() -> None:
    found = run(link_gb_s=0.2, schedule="gpu-only", prefetch="next-layer", tokens=30)
    assert found.utilization["pcie"] > 0.75


def test_hits_are_a_share_of_the_active_experts() -> None:
    everything = run(schedule="gpu-only", prefetch="none", cache_ratio=1.0)
    assert (everything.hit_rate, everything.bytes_moved) == (1.0, 0)
    nothing = run(schedule="static-experts", prefetch="none", cache_ratio=0.0)
    assert (nothing.hit_rate, nothing.bytes_moved) == (0.0, 0)
    assert nothing.utilization["pcie"] == 0.0


def test_planning_is_charged_per_layer_and_active_expert() -> None:
    """1 us per layer and 0.1 us per expert: two experts, three layers, four steps."""
    found = run(schedule="static-experts", prefetch="none")
    assert found.planning_s == pytest.approx(4 * 3 * 1.2e-6)


def test_a_wrong_belief_changes_plans_and_not_the_machine() -> None:
    """A CPU taken for 100 times as slow gets less to do; a static rule, which weighs
    nothing, is as fast as before."""
    exact, wrong = run(tokens=20), run(tokens=20, belief_error={"cpu": 100.0})
    assert wrong.utilization["cpu"] < exact.utilization["cpu"]
    assert wrong.as_dict()["belief_error"] == {"cpu": 100.0}
    unmoved = [
        run(schedule="static-experts", cache="pinned", prefetch="none", belief_error=error)
        for error in ({}, {"cpu": 100.0})
    ]
    assert unmoved[0].latencies_s == unmoved[1].latencies_s


def test_measured_and_described_beliefs_agree_for_single_tokens() -> None:
    measured, described = run(), run(belief="described")
    assert measured.latencies_s == described.latencies_s


def test_the_same_settings_give_the_same_result() -> None:
    first, second = run(seed=2), run(seed=2)
    assert replace(first, wall_s=0) == replace(second, wall_s=0)


def test_static_layers_do_all_of_a_layer_on_one_device() -> None:
    """12 slots for 3 layers of 8 experts: the first layer fits, attention and shared experts of
    the others run on the CPU with their experts."""
    timeline = Timeline()
    run(timeline=timeline, schedule="static-layers", cache="pinned", prefetch="none")
    for kind in ("dense", "expert"):
        lanes = {(s.layer, s.lane) for s in timeline.spans if s.kind == kind and s.layer >= 0}
        assert lanes == {(0, "gpu"), (1, "cpu"), (2, "cpu")}


def test_whole_layers_and_a_learning_cache_get_along() -> None:
    """The first layer holds more than its share: the others must not plan into its slots."""
    found = run(schedule="static-layers", cache="lru", prefetch="none", tokens=20, checked=True)
    assert found.tokens == 20
