"""Does what a run reports about itself hold: shares of time at most 1, the floor below the time?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from made_up import small_machine, small_model
from moesaic.core.report import Timeline
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.policies.policy_set import PolicySet, with_options
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

MODEL = small_model(layers=3, experts=8, top_k=2)


def run(
    seed: int = 0, link_gb_s: float = 2.0, timeline: Timeline | None = None, **changes: object
) -> Result:
    machine = small_machine()
    machine = replace(machine, pcie=replace(machine.pcie, bandwidth_gb_s=link_gb_s, latency_us=0.0))
    policies = PolicySet.of(schedule="hybrid", cache="lru")
    settings = Settings(
        MODEL, machine, policies=policies, cache_ratio=0.5, profile_tokens=8, tokens=4, warmup=2
    )
    calibration = default_calibration(MODEL.name, MODEL.num_experts)
    trace = synthesize(calibration, TraceShape.of(MODEL), 100, seed=seed, phase="decode")
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
