"""Schedules over three devices: TriMoE's rule by hand, and what holds for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tri_layers import drawn_layer, drawn_options, round_costs

from moesaic.policies.tri.baselines import (
    GPU_NDP,
    GPU_ONLY,
    enhanced_ktransformers,
    klotski,
    monde,
)
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP
from moesaic.policies.tri.exact import free_layout_bound, linear_bound, optimal
from moesaic.policies.tri.fast import balanced
from moesaic.policies.tri.layer import Options, busy_times, layer_of, makespan, options_of
from moesaic.policies.tri.refine import greedy, refine, trimoe

SEEDS = range(12)


def test_greedy_takes_the_cheapest_device_of_each_expert() -> None:
    costs = round_costs()
    layer = layer_of(
        costs, np.array([6, 3, 1, 4]), resident=np.array([True, False, False, False]),
        dimm=np.array([-1, -1, 0, 0]),
    )  # fmt: skip
    # 16 / 40; 100 / 20 striped; 100 / 80 / 40; 100 / 80 / 160 localized
    assert greedy(options_of(costs, layer)).tolist() == [ON_GPU, ON_CPU, ON_NDP, ON_CPU]


def _three(use: list[list[list[float]]]) -> Options:
    """Options of experts over three resources: one per device."""
    table = np.array(use)
    time = np.where(table.sum(axis=2) > 0, table.sum(axis=2), np.inf)
    return Options(table, time, np.zeros(3))


def _alone(*costs: float) -> list[list[float]]:
    return [[cost if r == o else 0.0 for r in range(3)] for o, cost in enumerate(costs)]


def test_refinement_moves_the_most_expensive_expert_of_the_bottleneck() -> None:
    """GPU 10 + 9 + 8: the 10 goes where the makespan is least (CPU 12), then nothing helps but the
    9, to the third device (15 < 17)."""
    options = _three([_alone(10, 12, 14), _alone(9, 14, 15), _alone(8, 20, 20)])
    choice = greedy(options)
    assert choice.tolist() == [0, 0, 0]
    assert refine(options, choice, 1) == 17
    assert choice.tolist() == [1, 0, 0]
    assert refine(options, choice, 8) == 15
    assert choice.tolist() == [1, 2, 0]


def _stuck() -> Options:
    """GPU 10 + 4: the 10 would take 30 elsewhere, the 4 takes 6 on the second device."""
    return _three([_alone(10, 30, 30), _alone(4, 6, 8)])


def test_an_expert_that_has_to_stay_does_not_end_the_refinement() -> None:
    """The paper: "until no re-assignment can further reduce the global makespan"."""
    options, choice = _stuck(), np.array([0, 0])
    assert refine(options, choice, 8) == 10
    assert choice.tolist() == [0, 1]


def test_with_one_candidate_the_refinement_ends_at_the_most_expensive_expert() -> None:
    options, choice = _stuck(), np.array([0, 0])
    assert refine(options, choice, 8, 1) == 14
    assert choice.tolist() == [0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_reassignment_of_one_expert_of_the_bottleneck_is_left(seed: int) -> None:
    options = drawn_options(seed, 40)
    choice = trimoe(options, 1000)
    end, busy = makespan(options, choice), busy_times(options, choice)
    for i in np.flatnonzero(options.use[np.arange(40), choice, np.argmax(busy)] > 0):
        for option in np.flatnonzero(np.isfinite(options.time[i])):
            other = choice.copy()
            other[i] = option
            assert makespan(options, other) >= end * (1 - 1e-12)


def test_of_equal_moves_the_one_that_adds_less_to_the_receiver_wins() -> None:
    """With either move the makespan is the 20 left on the GPU."""
    options = _three([_alone(21, 15, 12), _alone(20, 99, 99)])
    choice = np.array([0, 0])
    assert refine(options, choice, 1) == 20
    assert choice.tolist() == [2, 0]


def test_refinement_stops_at_its_limit() -> None:
    options = _three([_alone(10, 12, 14), _alone(9, 14, 15), _alone(8, 20, 20)])
    choice = np.array([0, 0, 0])
    assert refine(options, choice, 0) == 27
    assert choice.tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_refinement_never_increases_its_makespan(seed: int) -> None:
    options = drawn_options(seed, 40)
    choice, last = greedy(options), np.inf
    for _ in range(40):
        now = refine(options, choice, 1)
        assert now <= last
        assert now == pytest.approx(makespan(options, choice), rel=1e-12)
        last = now


@pytest.mark.parametrize("changes", [{}, {"shared": True}, {"contention": "full"}])
@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_hold(seed: int, changes: dict[str, Any]) -> None:
    """Linear bound <= exact <= every heuristic, and the price bound is one."""
    options = drawn_options(seed, **changes)
    best, proven = optimal(options)
    exact, linear = makespan(options, best), linear_bound(options)
    choice, end, bound = balanced(options, 40, 10)
    assert linear <= proven * (1 + 1e-6)
    assert proven <= exact * (1 + 1e-6)
    assert exact <= proven * (1 + 2e-3)
    assert bound <= exact * (1 + 1e-6)
    assert end == pytest.approx(makespan(options, choice), rel=1e-9)
    for found in (greedy(options), trimoe(options, 32), choice):
        assert makespan(options, found) >= proven * (1 - 1e-6)
        assert np.isfinite(options.time[np.arange(len(found)), found]).all()
    assert end <= 1.10 * exact


def test_the_fast_schedule_is_close_on_average() -> None:
    ratios = []
    for seed in SEEDS:
        options = drawn_options(seed, 30)
        best, _ = optimal(options)
        ratios.append(balanced(options, 40, 10)[1] / makespan(options, best))
    assert np.mean(ratios) <= 1.03


@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_beats_the_free_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = round_costs()
    layer = drawn_layer(rng, costs, 12)._replace(span=np.ones(12, dtype=np.int64))
    _, proven = optimal(options_of(costs, layer))
    assert free_layout_bound(costs, layer.loads, int(layer.resident.sum())) <= proven * (1 + 1e-6)


def test_klotski_uses_the_gpu_alone() -> None:
    costs = round_costs(pipelined=True)
    layer = layer_of(costs, np.array([50, 6, 1]), resident=np.array([True, False, False]))
    options = options_of(costs, layer, GPU_ONLY)
    choice = klotski(options)
    assert choice.tolist() == [ON_GPU] * 3
    assert makespan(options, choice) == 200  # two loads, computation hidden


def test_ktransformers_loads_the_most_loaded_as_far_as_that_pays() -> None:
    """CPU 300 + 200 + 20; with the first on the GPU 100 against 220; with two 200 against 20."""
    costs = round_costs()
    loads, resident = np.array([4, 60, 40]), np.array([False, False, False])
    options = options_of(costs, layer_of(costs, loads, resident=resident))
    assert enhanced_ktransformers(options, loads, resident).tolist() == [ON_CPU, ON_GPU, ON_GPU]


def test_monde_sends_weights_or_activations() -> None:
    """DIMM 0: 800 + 40 + 40. Loading the first takes 100 and leaves 80, and the read's 80."""
    costs = round_costs()
    loads, resident = np.array([1, 20, 1]), np.array([False, False, False])
    layer = layer_of(costs, loads, dimm=np.zeros(3, dtype=np.int64))
    options = options_of(costs, layer, GPU_NDP)
    assert monde(options, loads, resident).tolist() == [ON_NDP, ON_GPU, ON_NDP]
    assert ON_CPU not in monde(options, loads, resident)
