"""Does prefetching bring what helps most, and nothing else?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from drawn_work import work_of
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import exact_belief, routing_of, stated_physics
from moesaic import LLM
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.routing import ExpertId, Forecast
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.belief import Belief
from moesaic.policies.future import Future
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.prefetch import prefetches
from moesaic.policies.prefetch.base import Outlook
from moesaic.policies.records import MAX_PROPOSED
from moesaic.policies.rule_calls import schedule_rule
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.hybrid import hybrid
from moesaic.policies.timelines import ABSENT, CPU_FIRST, NUM_LANES, TRANSFER

LAYERS, EXPERTS = 5, 8


def belief_of(gpu: int = 1, cpu: int = 10, transfer: int = 3) -> Belief:
    """Constant on the GPU, per token on the CPU."""
    return exact_belief(stated_physics(lambda t: gpu, lambda t: cpu * t, transfer=transfer))


def outlook_of(
    predicted: Sequence[Sequence[Sequence[int]]],
    resident: Sequence[tuple[int, int]] = (),
    coming: Sequence[ExpertId] = (),
    starts: Sequence[int] = (1000, 2000, 3000),
    trust: Sequence[float] = (1.0, 1.0, 1.0),
    belief: Belief | None = None,
    link_free: int = 0,
    delays: Sequence[int] = (0,) * (MAX_PROPOSED + 1),
    miss_rate: float = 0.0,
) -> Outlook:
    """After layer 0; `predicted[d]` are the experts per token d + 1 layers on, `delays[n]` what n
    transfers cost the next layer."""
    known = belief_of() if belief is None else belief
    lanes = np.zeros(NUM_LANES, dtype=np.int64)
    lanes[CPU_FIRST], lanes[TRANSFER] = known.cpu_first_ns, known.transfer_ns
    table = np.zeros((LAYERS, EXPERTS), dtype=np.uint8)
    for at in resident:
        table[at] = 1
    forecasts = []
    for d, rows in enumerate(predicted):
        routing = routing_of(d + 1, rows)
        forecasts.append(Forecast(d + 1, routing.ranked, routing.scores))
    return Outlook(
        layer=0,
        forecasts=tuple(forecasts),
        resident=table,
        coming=tuple(coming),
        expected_rule=schedule_rule(hybrid),
        fills_timelines=True,
        belief=known,
        lanes=lanes,
        link_free_ns=link_free,
        starts=np.asarray(starts, dtype=np.int64),
        delays=np.asarray(delays, dtype=np.int64),
        trust=tuple(trust),
        miss_rate=miss_rate,
    )


def test_next_layer_proposes_the_missing_predicted_experts_likeliest_first() -> None:
    """Scores fall with rank: 5 is first for both tokens, 2 and 3 are resident or under way."""
    outlook = outlook_of(
        [[[5, 2, 6], [5, 3, 7]], [[0, 1, 2], [0, 1, 2]]], [(1, 2)], [ExpertId(1, 3)]
    )
    proposed = prefetches.create("next-layer").propose(outlook)
    assert proposed == [ExpertId(1, 5), ExpertId(1, 6), ExpertId(1, 7)]


@pytest.mark.parametrize("prefetch", ["next-layer", "impact"])
def test_an_expert_under_way_to_another_layer_is_still_missing_here(prefetch: str) -> None:
    """5 comes to layer 1; the 4 that comes to layer 2 is another one."""
    coming = [ExpertId(2, 4), ExpertId(1, 5)]
    outlook = outlook_of([[[5, 4]]], coming=coming, belief=belief_of(transfer=500))
    assert prefetches.create(prefetch).propose(outlook) == [ExpertId(1, 4)]


def test_next_layer_proposes_expert_0_first_where_it_is_the_likeliest() -> None:
    proposed = prefetches.create("next-layer").propose(outlook_of([[[0, 4, 2]]]))
    assert proposed == [ExpertId(1, 0), ExpertId(1, 4), ExpertId(1, 2)]


def test_nothing_is_proposed_when_nothing_is_missing() -> None:
    everything = [(at, e) for at in range(LAYERS) for e in range(EXPERTS)]
    predicted = [[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 0]]]
    for name in ("next-layer", "impact"):
        assert prefetches.create(name).propose(outlook_of(predicted, everything)) == [], name
        assert prefetches.create(name).propose(outlook_of([])) == [], name
    assert prefetches.create("none").propose(outlook_of(predicted)) == []


def test_impact_proposes_nothing_that_does_not_shorten_a_layer() -> None:
    """A CPU so fast that a missing expert costs nothing."""
    fast = belief_of(gpu=5, cpu=1, transfer=100)
    assert prefetches.create("impact").propose(outlook_of([[[0]]], belief=fast)) == []


def test_impact_takes_the_higher_load_first() -> None:
    """Expert 4 has three tokens, the others one: without it the CPU needs longest."""
    outlook = outlook_of([[[4, 0], [4, 1], [4, 2]]], belief=belief_of(transfer=500))
    assert prefetches.create("impact").propose(outlook)[0] == ExpertId(1, 4)


def test_impact_prefers_what_comes_in_time_for_a_later_layer() -> None:
    """The next layer starts at 10, a transfer takes 100 and the CPU 60: too late to help there,
    in time for the layer that starts at 120."""
    slow = belief_of(gpu=1, cpu=60, transfer=100)
    outlook = outlook_of([[[0]], [[1]]], starts=(10, 120, 230), belief=slow)
    assert prefetches.create("impact").propose(outlook)[0] == ExpertId(2, 1)
    early = outlook_of([[[0]], [[1]]], starts=(100, 220, 340), belief=slow)
    assert prefetches.create("impact").propose(early)[0] == ExpertId(1, 0)


def test_impact_counts_the_time_until_the_link_is_free() -> None:
    slow = belief_of(gpu=1, cpu=60, transfer=100)
    busy = outlook_of([[[0]], [[1]]], starts=(100, 220, 340), belief=slow, link_free=90)
    assert prefetches.create("impact").propose(busy)[0] == ExpertId(2, 1)


def test_impact_discounts_what_is_seldom_predicted_right() -> None:
    """Layer 2 would gain twice as much as layer 1, but is forecast right a quarter of the time."""
    predicted = [[[0], [0]], [[1], [1], [1], [1]]]
    prefetch = prefetches.create("impact")
    slow = belief_of(cpu=10, transfer=500)
    trusted = outlook_of(predicted, trust=(1.0, 1.0, 1.0), belief=slow)
    assert prefetch.propose(trusted)[0] == ExpertId(2, 1)
    doubted = outlook_of(predicted, trust=(1.0, 0.25, 0.25), belief=slow)
    assert prefetch.propose(doubted)[0] == ExpertId(1, 0)


def test_impact_must_be_worth_the_delay_of_the_next_layer() -> None:
    """Expert 0 saves 19 of 20 there: worth a delay of 18 and not one of 19."""
    prefetch = prefetches.create("impact")
    slow = belief_of(gpu=1, cpu=20, transfer=500)
    worth = outlook_of([[[0]]], belief=slow, delays=(0, 18))
    assert prefetch.propose(worth) == [ExpertId(1, 0)]
    too_dear = outlook_of([[[0]]], belief=slow, delays=(0, 19))
    assert prefetch.propose(too_dear) == []


def test_nothing_useless_is_moved_because_it_costs_less_than_nothing() -> None:
    """Greedy schedules are not monotone: one transfer more may seem to cost the next layer less."""
    outlook = outlook_of([[[0]]], [(1, 0)], delays=(0, -5, -9))
    assert prefetches.create("impact").propose(outlook) == []


def _gain(outlook: Outlook, ready: dict[ExpertId, int], candidate: ExpertId, arrival: int) -> float:
    """How much earlier the candidate's layer ends with it on its way, by the schedule itself."""
    d = candidate.layer - 1
    loads = np.bincount(outlook.forecasts[d].ranked.ravel(), minlength=EXPERTS)
    seen = dict.fromkeys(outlook.forecasts[d].ranked.ravel().tolist())  # equal loads: first seen
    experts = sorted(seen, key=lambda e: -int(loads[e]))
    tables = outlook.belief.tables

    def ends(at: dict[ExpertId, int]) -> int:
        work = work_of(
            [int(loads[e]) for e in experts],
            [at.get(ExpertId(candidate.layer, e), ABSENT) for e in experts],
            gpu=lambda t: int(tables[0, t]),
            cpu=lambda t: int(tables[1, t]),
            transfer=outlook.belief.transfer_ns,
            first=outlook.belief.cpu_first_ns,
        )
        work.lanes[:] = outlook.lanes
        return schedules.create("hybrid").assign(work).believed_ns

    late = max(arrival - int(outlook.starts[d]), 0)
    n = int(np.count_nonzero(loads))
    victim_wanted = (1.0 - outlook.trust[d]) * n / max(EXPERTS - n, 1)
    weight = max(outlook.trust[d] - victim_wanted, 0.0)
    return (ends(ready) - ends({**ready, candidate: late})) * weight


@st.composite
def outlooks(draw: st.DrawFn) -> Outlook:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens, k = draw(st.sampled_from([1, 2, 6])), draw(st.integers(1, 4))
    depth = draw(st.integers(1, 3))
    predicted = [
        rng.random((tokens, EXPERTS)).argsort(axis=1)[:, :k].tolist() for _ in range(depth)
    ]
    share = draw(st.sampled_from([0.0, 0.4, 0.8]))
    resident = [(at, e) for at in range(LAYERS) for e in range(EXPERTS) if rng.random() < share]
    first = int(rng.integers(0, 200))
    gap = int(rng.integers(10, 200))
    return outlook_of(
        predicted,
        resident,
        starts=(first, first + gap, first + 2 * gap),
        trust=(1.0, 0.5, 0.25),
        belief=belief_of(*(int(n) for n in rng.integers(1, 80, 3))),
        link_free=int(rng.integers(0, 100)),
        miss_rate=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        delays=(0, *rng.integers(-20, 40, int(rng.integers(1, MAX_PROPOSED + 1))).tolist()),
    )


def _surprises(outlook: Outlook, distance: int) -> list[ExpertId]:
    """Of the experts predicted and there, as many as will be wrong and missing instead."""
    forecast = outlook.forecasts[distance]
    loads = np.bincount(forecast.ranked.ravel(), minlength=EXPERTS)
    seen = reversed(dict.fromkeys(forecast.ranked.ravel().tolist()))
    there = [e for e in seen if outlook.resident[forecast.layer, e]]
    wrong = (1.0 - outlook.trust[distance]) * np.count_nonzero(loads)
    count = round(wrong * outlook.miss_rate)
    return [ExpertId(forecast.layer, e) for e in sorted(there, key=lambda e: loads[e])[:count]]


@settings(max_examples=120)
@given(outlooks())
def test_impact_always_picks_the_largest_gain_one_transfer_after_the_other(
    outlook: Outlook,
) -> None:
    """An account of its own: value every candidate, take the best, value again."""
    ready = {
        ExpertId(at, e): 0
        for at in range(1, LAYERS)
        for e in range(EXPERTS)
        if outlook.resident[at, e]
    }
    predicted = {ExpertId(f.layer, int(e)) for f in outlook.forecasts for e in f.ranked.ravel()}
    candidates = predicted - ready.keys()
    for distance in range(len(outlook.forecasts)):
        for surprise in _surprises(outlook, distance):
            del ready[surprise]
    proposed = prefetches.create("impact").propose(outlook)
    most = len(outlook.delays) - 1
    assert len(proposed) <= most
    for place in range(most):
        least = max(int(outlook.delays[place + 1] - outlook.delays[place]), 0)
        arrival = outlook.link_free_ns + (place + 1) * outlook.belief.transfer_ns
        gains = {c: _gain(outlook, ready, c, arrival) for c in candidates - ready.keys()}
        best = max(gains.values(), default=0)
        if place == len(proposed):
            assert best <= least, "something that helps was left out"
            return
        assert gains[proposed[place]] == best > least
        start = int(outlook.starts[proposed[place].layer - 1])
        ready[proposed[place]] = max(arrival - start, 0)


def test_the_future_forecasts_the_true_loads() -> None:
    loads = np.zeros((1, LAYERS, EXPERTS), dtype=np.uint32)
    loads[0, 1, 6], loads[0, 2, 3] = 1, 5
    future = Future(loads)
    future.step = 0
    near, far = future.forecasts(0, 2)
    assert (near.layer, near.ranked.tolist()) == (1, [[6]])
    assert (far.layer, far.ranked.tolist()) == (2, [[3, 3, 3, 3, 3]])


def test_the_oracle_values_the_truth() -> None:
    outlook = outlook_of(
        [[[6]], [[3, 3, 3, 3, 3]]], belief=belief_of(transfer=500), trust=(1.0, 1.0, 1.0)
    )
    proposed = prefetches.create("oracle").propose(outlook)
    assert proposed == [ExpertId(2, 3), ExpertId(1, 6)]


# Pre-gated MoE in the simulator: the next layer's experts are known, and nothing else is.


def run(prefetch: str, **options: Any) -> Result:
    settings = Settings(
        load_model("olmoe-1b-7b"),
        load_machine("rtx4080-i5-12400"),
        policies=PolicySet.of(
            schedule="gpu-only", cache="lru", prefetch=prefetch, gate=options.pop("gate", "full")
        ),
        tokens=16,
        warmup=4,
        checked=True,
        **options,
    )
    return simulate(settings, choose_workload(None, settings).source)


def test_what_is_prefetched_is_what_the_next_layer_uses() -> None:
    none, learned, known = (run(each) for each in ("none", "next-layer", "pre-gated"))
    assert known.mean_s < learned.mean_s
    assert known.mean_s < none.mean_s
    assert known.prediction_accuracy == (), "nothing is predicted, so nothing can be wrong"
    assert learned.prediction_accuracy[0] < 1.0


def test_it_joins_big_little() -> None:
    gated = run("pre-gated", gate="big-little", fallback_ratio=0.2)
    assert gated.mean_s < run("none", gate="big-little", fallback_ratio=0.2).mean_s
    assert gated.mean_s < run("pre-gated").mean_s


def test_a_real_model_has_no_such_gates() -> None:
    with pytest.raises(ImpossibleSetting, match="simulator"):
        LLM(prefetch="pre-gated", accelerator="emulated")
