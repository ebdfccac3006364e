"""Does a captured step's timeline show what happened: in order, one thing per lane at a time, every
expert and copy once, and no time without an account? With a GPU that is a function."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("moesaic.machines.captured._conductor")

from pretended_gpu import EXPERTS, GPU_CLOCK_NS, LAYERS, TOP_K, Scene

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import AWAIT_PLAN, AWAIT_SUM, ENGINE, Span, busy_ns, covered_ns
from moesaic.machines.captured.captured_spans import CapturedSpans
from moesaic.machines.captured.captured_step import CapturedStep, clock_bounds
from moesaic.machines.captured.conductor import CopyTimes, LayerTimes, LayerWork, Limits
from moesaic.machines.captured.stamps import LayerStamps, StepStamps
from moesaic.policies.policy_set import PolicySet

COPIED = Limits(copy_from=2, look_ahead_to=1, stream_ahead=2)
SYSTEMS = [("best-split", "lru", "next-layer"), ("gpu-only", "lru", "none")]


def choices(tokens: int, steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    shape = (LAYERS, tokens)
    return [
        np.array([rng.permutation(EXPERTS)[:TOP_K] for _ in range(LAYERS * tokens)])
        .reshape(*shape, TOP_K)
        .astype(np.int64)
        for _ in range(steps)
    ]


def assert_lanes_in_order(spans: list[Span]) -> None:
    for lane in (GPU, CPU, PCIE, ENGINE):
        mine = sorted(span[2:4] for span in spans if span.lane == lane)
        assert all(start < end for start, end in mine)
        assert all(one[1] <= other[0] for one, other in pairwise(mine)), lane


@pytest.mark.parametrize(("tokens", "limits"), [(1, Limits()), (4, COPIED)])
@pytest.mark.parametrize("names", SYSTEMS, ids="+".join)
def test_every_lane_does_one_thing_at_a_time_and_every_expert_once(
    names: tuple[str, str, str], tokens: int, limits: Limits
) -> None:
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2])
    scene = Scene(policies, 9, tokens, copy_ns=200_000, limits=limits, staging=6)
    captured, everything, submitted = CapturedSpans(EXPERTS), [], 0
    for number, chosen in enumerate(choices(tokens, 8)):
        scene.step(number, chosen)
        step = scene.trace()
        submitted += len(step.copies)
        spans = captured.of(step, engine=True)
        everything += spans
        computed = Counter((s.layer, e) for s in spans if s.kind == "expert" for e in s.computed)
        wanted = {(layer, e) for layer in range(LAYERS) for e in set(chosen[layer].ravel())}
        assert computed.keys() == wanted
        assert set(computed.values()) == {1}
        pairs = sum(s.tokens for s in spans if s.kind == "expert")
        assert pairs == LAYERS * tokens * TOP_K
        told = (s for s in spans if s.lane in (GPU, ENGINE))
        accounted = covered_ns(told, step.started_ns, step.ended_ns)
        assert accounted > 0.98 * (step.ended_ns - step.started_ns)
        assert {s.layer for s in spans if s.kind == AWAIT_PLAN} == set(range(LAYERS))
    assert_lanes_in_order(everything)
    copies = [s for s in everything if s.lane == PCIE and not s.experts]
    assert len(copies) == submitted
    if limits is COPIED:
        assert submitted > 4
    if names[0] == "gpu-only" and limits is not COPIED:
        assert any(s.lane == PCIE and s.experts for s in everything)


def test_the_gpus_clock_is_found_from_what_both_sides_see() -> None:
    """The offset is within the bounds, and the bounds are no wider than a handshake."""
    scene = Scene(PolicySet.of(), slots=9)
    for number, chosen in enumerate(choices(1, 5)):
        scene.step(number, chosen)
        bounds = clock_bounds(scene.trace())
        assert bounds.least <= GPU_CLOCK_NS <= bounds.most
        assert bounds.uncertainty_ns < 5_000_000


def made_up(copies: list[CopyTimes], in_place: list[int]) -> CapturedStep:
    """One layer; the GPU's clock is 1000 behind, and everything takes round times."""
    stamps = LayerStamps(routed=100, shared=120, planned=200, there=0, computed=500, summed=600)
    times = LayerTimes(
        routed=1110, planned=1195, submitted=1240, looked_ahead=1300, summed=1596, on_gpu=2,
        on_cpu=1, transfers=1, background=0, hits=1, publishing=1190, cpu_begun=1195,
        cpu_ended=1590, summing=1590,
    )  # fmt: skip
    work = LayerWork([3, 5], [1, 1], in_place, [7], [1], 2)
    return CapturedStep(1000, 1760, 1, StepStamps(10, [stamps], 750), [times], [work], copies)


def test_one_layer_told_in_full() -> None:
    spans = CapturedSpans(8).of(made_up([], [3]), engine=True)
    assert clock_bounds(made_up([], [])) == (990, 1010)
    assert [s[:6] for s in spans] == [
        (GPU, "dense", 1010, 1100, 0, -1),
        (GPU, "dense", 1100, 1120, 0, -1),
        (GPU, AWAIT_PLAN, 1120, 1200, 0, -1),
        (GPU, "expert", 1200, 1500, 0, -1),
        (GPU, AWAIT_SUM, 1500, 1600, 0, -1),
        (GPU, "dense", 1600, 1750, -1, -1),
        (CPU, "expert", 1195, 1590, 0, 7),
        (PCIE, "transfer", 1200, 1500, 0, 3),
        (ENGINE, "launch", 1000, 1010, -1, -1),
        (ENGINE, "hand-over", 1100, 1110, 0, -1),
        (ENGINE, "plan", 1110, 1195, 0, -1),
        (ENGINE, "start", 1195, 1240, 0, -1),
        (ENGINE, "look-ahead", 1240, 1300, 0, -1),
        (ENGINE, "sum", 1590, 1600, 0, -1),
        (ENGINE, "return", 1750, 1760, -1, -1),
    ]
    assert spans[3].experts == (3, 5)
    assert busy_ns(spans, GPU) == 90 + 20 + 300 + 150


def test_copies_and_reads_in_place_share_the_link() -> None:
    """The second copy was not watched: it is as long as the first, within its bounds; the third
    ends no earlier than it was seen under way."""
    copies = [
        CopyTimes(8 + 1, True, submitted=1250, unseen=1300, seen=1310),
        CopyTimes(8 + 2, True, submitted=1255, unseen=1310, seen=90_000),
        CopyTimes(8 + 4, False, submitted=1260, unseen=1450, seen=95_000),
    ]
    spans = [s for s in CapturedSpans(8).of(made_up(copies, [3, 5]), False) if s.lane == PCIE]
    assert [s[1:6] for s in spans] == [
        ("transfer", 1200, 1250, 0, -1),
        ("prefetch", 1250, 1310, 1, 1),
        ("prefetch", 1310, 1370, 1, 2),
        ("transfer", 1370, 1450, 1, 4),
        ("transfer", 1450, 1500, 0, -1),
    ]
    assert spans[0].experts == spans[-1].experts == (3, 5)


def test_experts_that_arrive_are_told_from_those_that_are_there() -> None:
    step = made_up([], [])
    stamps = step.stamps.layers[0]._replace(there=300)
    work = step.work[0]._replace(there=1)
    step = step._replace(stamps=StepStamps(10, [stamps], 750), work=[work])
    spans = [s for s in CapturedSpans(8).of(step, False) if s.lane == GPU and s.kind == "expert"]
    assert [(s.start_ns, s.end_ns, s.expert) for s in spans] == [(1200, 1300, 3), (1300, 1500, 5)]


def test_nothing_is_summed_where_the_cpu_has_no_expert() -> None:
    step = made_up([], [])
    times = step.times[0]._replace(on_cpu=0, cpu_begun=0, cpu_ended=0, summing=1190, summed=1195)
    work = step.work[0]._replace(cpu=[], cpu_pairs=[])
    spans = CapturedSpans(8).of(step._replace(times=[times], work=[work]), True)
    kinds = [s.kind for s in spans if s.lane == ENGINE]
    assert kinds == ["launch", "hand-over", "plan", "start", "look-ahead", "return"]
    assert not [s for s in spans if s.lane == CPU]


def test_a_look_ahead_may_outlast_the_layer() -> None:
    """The conductor does one thing at a time: what follows begins when it is free."""
    step = made_up([], [])
    times = step.times[0]._replace(looked_ahead=1755)
    spans = CapturedSpans(8).of(step._replace(times=[times]), True)
    assert [s[1:4] for s in spans if s.lane == ENGINE][-2:] == [
        ("look-ahead", 1240, 1755),
        ("return", 1755, 1760),
    ]


def test_a_gpu_without_experts_waits_from_the_plan_on() -> None:
    step = made_up([], [])
    work = step.work[0]._replace(gpu=[], gpu_pairs=[], there=0)
    spans = CapturedSpans(8).of(step._replace(work=[work]), False)
    assert [(s.start_ns, s.end_ns) for s in spans if s.kind == AWAIT_SUM] == [(1200, 1600)]
    assert not [s for s in spans if s.lane == GPU and s.kind == "expert"]
