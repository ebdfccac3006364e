"""Which cache hits most? A cache alone, over a trace, without a machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import RandomStep, future_of, random_steps, routing_of, small_model
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.cache import caches
from moesaic.policies.future import Future
from moesaic.policies.hit_rate_replay import RoutedStep, replay_hit_rates
from moesaic.workloads.stats.cache import lru_curve
from moesaic.workloads.stats.sample import collect
from moesaic.workloads.steps import decode_steps
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

LEARNING = [name for name in caches if not caches.load(name).fixed and name != "belady"]


def hit_rate(
    name: str,
    steps: Sequence[RoutedStep],
    model: ModelSpec,
    slots: int,
    future: Future | None = None,
    one_by_one: bool = False,
) -> float:
    layers, experts = model.num_moe_layers, model.num_experts
    cache = caches.create(name, layers, experts, model.top_k)
    return replay_hit_rates(cache, steps, layers, experts, slots, future, one_by_one)


def one_layer(*chosen: list[int]) -> list[RandomStep]:
    return [RandomStep((routing_of(0, [row]),)) for row in chosen]


def test_lru_by_hand() -> None:
    """Two slots: 0 and 1 come in, 0 hits, 2 evicts 1, 1 evicts 0, 2 hits: 2 of 6."""
    steps = one_layer([0], [1], [0], [2], [1], [2])
    assert hit_rate("lru", steps, small_model(1, 3, 1), slots=2) == pytest.approx(2 / 6)


def test_belady_by_hand() -> None:
    """Two slots, the same sequence: 2 takes the place of 0 (never again), so 1 and 2 hit too."""
    steps, model = one_layer([0], [1], [0], [2], [1], [2]), small_model(1, 3, 1)
    rate = hit_rate("belady", steps, model, 2, future_of(steps, model))
    assert rate == pytest.approx(3 / 6)


def test_lfu_refuses_a_newcomer_with_fewer_uses() -> None:
    """One slot: 0 is used twice, so 1 passes by and 0 still hits."""
    steps = one_layer([0], [0], [1], [0])
    assert hit_rate("lfu", steps, small_model(1, 3, 1), slots=1) == pytest.approx(2 / 4)


def test_a_newcomer_that_is_worth_the_same_does_not_displace() -> None:
    steps = one_layer([0], [1], [0])
    assert hit_rate("lfu", steps, small_model(1, 3, 1), slots=1) == pytest.approx(1 / 3)


def test_a_step_asks_for_all_its_experts_at_once() -> None:
    """One slot, two experts, twice the same: one of them is still there; asked for one after
    the other, each evicts the next."""
    steps, model = one_layer([0, 1], [0, 1]), small_model(1, 3, 2)
    assert hit_rate("lru", steps, model, slots=1) == pytest.approx(1 / 4)
    assert hit_rate("lru", steps, model, slots=1, one_by_one=True) == 0.0


@settings(max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 3), st.data())
def test_no_cache_beats_belady(seed: int, experts: int, layers: int, data: st.DataObject) -> None:
    model = small_model(layers, experts, data.draw(st.integers(1, experts)))
    slots = data.draw(st.integers(0, experts))
    steps = random_steps(seed, 25, model, tokens=data.draw(st.sampled_from([1, 1, 3])))
    bound = hit_rate("belady", steps, model, slots, future_of(steps, model))
    for name in LEARNING:
        assert hit_rate(name, steps, model, slots) <= bound + 1e-12, name


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 3))
def test_belady_equals_the_best_of_all_choices(seed: int, top_k: int, slots: int) -> None:
    """Against a search over every set that could be kept after every step."""
    model = small_model(1, 4, top_k)
    steps = random_steps(seed, 7, model)
    wanted = [frozenset(s.layer(0).experts[0].tolist()) for s in steps]
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for asked in wanted:
        after: dict[frozenset[int], int] = {}
        for kept, hits in best.items():
            pool = sorted(kept | asked)
            for mask in range(1 << len(pool)):
                keep = frozenset(e for i, e in enumerate(pool) if mask >> i & 1)
                if len(keep) <= slots:
                    after[keep] = max(after.get(keep, 0), hits + len(kept & asked))
        best = after
    rate = hit_rate("belady", steps, model, slots, future_of(steps, model))
    assert round(rate * top_k * len(steps)) == max(best.values())


def test_on_a_calibrated_trace_belady_bounds_all_and_lru_is_the_statistics_lru() -> None:
    model = load_model("deepseek-v2-lite")
    calibration = default_calibration(model.name, model.num_experts)
    trace = synthesize(calibration, TraceShape.of(model), 250, seed=1, phase="decode")
    steps = list(decode_steps(trace, 1))
    layers, experts = range(model.num_moe_layers), model.num_experts
    loads = [[s.layer(at).loads(experts) for at in layers] for s in steps]
    future = Future(np.asarray(loads, dtype=np.uint32))
    fractions = (0.25, 0.5, 0.75)
    curve = lru_curve(collect(trace, len(steps)), fractions, cold=False)
    for fraction, expected in zip(fractions, curve, strict=True):
        slots = int(fraction * experts)
        bound = hit_rate("belady", steps, model, slots, future)
        for name in LEARNING:
            assert hit_rate(name, steps, model, slots) <= bound, name
        rate = hit_rate("lru", steps, model, slots, one_by_one=True)
        assert rate == pytest.approx(expected, abs=1e-12)


def test_one_pool_lets_a_busy_layer_take_another_ones_slots() -> None:
    """Layer 0 always wants expert 0, layer 1 all of 0, 1, 2 in turn: two slots each leave layer 1
    short, four together hold everything."""
    model = small_model(layers=2, experts=4, top_k=1)
    steps = [RandomStep((routing_of(0, [[0]]), routing_of(1, [[turn % 3]]))) for turn in range(60)]
    layers, experts = model.num_moe_layers, model.num_experts
    rates = {
        pool: replay_hit_rates(
            caches.create("lru", layers, experts, 1), steps, layers, experts, 2, global_pool=pool
        )
        for pool in (False, True)
    }
    assert rates[False] == pytest.approx(0.5, abs=0.02), "layer 1 never hits"
    assert rates[True] > 0.95


def test_always_admitting_lets_a_newcomer_in_whatever_it_is_worth() -> None:
    """After 50 uses of expert 0 with one slot, 1 is used for ever: LFU with bypass keeps 0 until
    its count is reached, without bypass it changes at once."""
    steps = one_layer(*[[0]] * 50, *[[1]] * 20)
    rates = [
        replay_hit_rates(caches.create("lfu", 1, 2, 1), steps, 1, 2, 1, admits_always=always)
        for always in (False, True)
    ]
    assert rates == [49 / 70, (49 + 19) / 70]
