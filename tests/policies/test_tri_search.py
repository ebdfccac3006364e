"""Steps of the three-device searches, each against trying everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tri_layers import drawn_layer, drawn_options, round_costs

from moesaic.policies.tri import fast
from moesaic.policies.tri.baselines import GPU_CPU, GPU_NDP, enhanced_ktransformers, monde
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP
from moesaic.policies.tri.layer import Options, busy_times, makespan, options_of
from moesaic.policies.tri.refine import greedy, refine

Ints = np.ndarray
SEEDS = range(8)


def possible(options: Options, i: int) -> list[int]:
    return [o for o in range(3) if np.isfinite(options.time[i, o])]


def any_choice(options: Options, seed: int) -> Ints:
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(possible(options, i)) for i in range(len(options.time))])


def with_changes(choice: Ints, *changes: tuple[int, int]) -> Ints:
    other = choice.copy()
    for i, option in changes:
        other[i] = option
    return other


def off_the_bottleneck(options: Options, choice: Ints) -> list[tuple[int, int]]:
    """Reassignments of one expert that occupy the busiest resource less."""
    at = int(np.argmax(busy_times(options, choice)))
    return [
        (i, o)
        for i in range(len(choice))
        for o in possible(options, i)
        if options.use[i, o, at] < options.use[i, choice[i], at]
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_step_is_the_best_there_is(seed: int) -> None:
    options = drawn_options(seed, 10)
    choice = any_choice(options, seed)
    busy = busy_times(options, choice)
    steps = 0
    while True:
        before = makespan(options, choice)
        tried = [
            makespan(options, with_changes(choice, change))
            for change in off_the_bottleneck(options, choice)
        ]
        better = bool(tried) and min(tried) < before * (1 - 1e-9)
        assert fast.single(options, choice, busy) == better
        if not better:
            break
        assert makespan(options, choice) == pytest.approx(min(tried))
        assert busy == pytest.approx(busy_times(options, choice))
        steps += 1
    assert steps


@pytest.mark.parametrize("seed", range(24))
def test_a_pair_is_found_where_there_is_one(seed: int) -> None:
    """One expert leaves the bottleneck, another leaves what is the busiest then."""
    options = drawn_options(seed, 7)
    choice = any_choice(options, seed)
    busy = busy_times(options, choice)
    while fast.single(options, choice, busy):
        pass
    before = makespan(options, choice)
    ends = [
        makespan(options, with_changes(choice, change, (j, o)))
        for change in off_the_bottleneck(options, choice)
        for j in range(7)
        for o in possible(options, j)
        if j != change[0] and o != choice[j]
    ]
    better = bool(ends) and min(ends) < before * (1 - 1e-9)
    was = choice.copy()
    assert fast.pair(options, choice, busy) == better
    assert (makespan(options, choice) < before) == better
    assert (choice != was).sum() == (2 if better else 0)
    assert busy == pytest.approx(busy_times(options, choice))


def test_some_of_those_layers_have_pairs_and_some_have_none() -> None:
    found = []
    for seed in SEEDS:
        options = drawn_options(seed, 7)
        choice = any_choice(options, seed)
        busy = busy_times(options, choice)
        while fast.single(options, choice, busy):
            pass
        found.append(fast.pair(options, choice, busy))
    assert set(found) == {False, True}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_ends_where_neither_helps_or_it_is_enough(seed: int) -> None:
    options = drawn_options(seed, 9)
    start = any_choice(options, seed)
    choice = start.copy()
    end = fast.search(options, choice, 0.0)
    assert end == pytest.approx(makespan(options, choice))
    busy = busy_times(options, choice)
    assert not fast.single(options, choice, busy)
    assert not fast.pair(options, choice, busy)
    kept = start.copy()
    assert fast.search(options, kept, makespan(options, start)) == makespan(options, start)
    assert kept.tolist() == start.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_prices_prove_a_bound(seed: int) -> None:
    """At any prices that add up to one, the cheapest way of all costs no more than the makespan
    of any choice."""
    options = drawn_options(seed, 5)._replace(base=np.arange(9.0) * 5)
    rng = np.random.default_rng(seed)
    prices = rng.dirichlet(np.ones(9))
    choice = np.zeros(5, dtype=np.int64)
    bound = fast.respond(options, prices, choice)
    ways = list(product(*(possible(options, i) for i in range(5))))
    paid = [float(prices @ busy_times(options, np.array(way))) for way in ways]
    assert bound == pytest.approx(min(paid))
    assert float(prices @ busy_times(options, choice)) == pytest.approx(min(paid))
    best, popular = np.zeros((2, 5), dtype=np.int64)
    end, proven = fast.priced(options, 30, best, popular)
    least = min(makespan(options, np.array(way)) for way in ways)
    assert end == pytest.approx(makespan(options, best))
    assert 0.5 * least < proven <= least * (1 + 1e-9)
    assert all(popular[i] in possible(options, i) for i in range(5))


def test_the_most_frequent_choice_follows_the_prices() -> None:
    """Loading takes for ever, so no price makes the GPU the cheapest."""
    options = drawn_options(4, 9, pcie_ns=1e6)
    best, popular = np.zeros((2, 9), dtype=np.int64)
    fast.priced(options, 30, best, popular)
    missing = options.time[:, ON_GPU] >= 1e6
    assert missing.any()
    assert (popular[missing] != ON_GPU).all()


def test_a_kick_changes_what_may_be_changed_and_always_the_same() -> None:
    options = drawn_options(3, 12)
    choice = greedy(options)
    first, second = choice.copy(), choice.copy()
    seed = fast.kick(options, first, 1)
    assert seed == fast.kick(options, second, 1) != 1
    assert first.tolist() == second.tolist()
    changed = []
    for _ in range(40):
        before = first.copy()
        seed = fast.kick(options, first, seed)
        assert np.isfinite(options.time[np.arange(12), first]).all()
        changed.append(int((first != before).sum()))
    assert set(changed) == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", SEEDS)
def test_kicks_never_lose_what_was_found(seed: int) -> None:
    options = drawn_options(seed, 20)
    ends = [fast.balanced(options, 20, kicks)[1] for kicks in (0, 4, 12)]
    assert ends == sorted(ends, reverse=True)


def most_loaded(options: Options, loads: Ints, resident: Ints, elsewhere: int) -> Ints:
    """Every number of experts to load, highest loads first."""
    stays = [
        ON_GPU if resident[i] or not np.isfinite(options.time[i, elsewhere]) else elsewhere
        for i in range(len(loads))
    ]
    order = [i for i in np.argsort(-loads).tolist() if stays[i] != ON_GPU]
    tried = [
        with_changes(np.array(stays), *((i, ON_GPU) for i in order[:count]))
        for count in range(len(order) + 1)
    ]
    ends = [makespan(options, choice) for choice in tried]
    return tried[int(np.argmin(np.round(ends, 6)))]


@pytest.mark.parametrize("seed", SEEDS)
def test_baselines_load_the_number_of_experts_that_ends_earliest(seed: int) -> None:
    """MoNDE finds experts that no DIMM has: those run on the GPU."""
    costs, rng = round_costs(), np.random.default_rng(seed)
    layer = drawn_layer(rng, costs, 12)
    loads = rng.permutation(np.arange(1, 13)) * 3
    layer = layer._replace(loads=loads)
    for rule, devices, elsewhere in (
        (enhanced_ktransformers, GPU_CPU, ON_CPU),
        (monde, GPU_NDP, ON_NDP),
    ):
        options = options_of(costs, layer, devices)
        found = rule(options, loads, layer.resident).tolist()
        assert found == most_loaded(options, loads, layer.resident, elsewhere).tolist()


def test_refinement_leaves_a_bottleneck_without_experts_alone() -> None:
    options = drawn_options(2, 6)
    base = np.zeros(9)
    base[0] = 1e6
    choice = np.where(np.isfinite(options.time[:, ON_CPU]), ON_CPU, ON_GPU)
    was = choice.tolist()
    assert refine(options._replace(base=base), choice, 8) == 1e6
    assert choice.tolist() == was


def test_refinement_makes_no_move_that_ends_at_the_same_time() -> None:
    """The GPU's 10 could go to the CPU, which would then be busy for as long."""
    use = np.zeros((1, 3, 3))
    use[0, 0, 0], use[0, 1, 1] = 10, 10
    options = Options(use, np.array([[10.0, 10.0, np.inf]]), np.zeros(3))
    choice = np.array([ON_GPU])
    assert refine(options, choice, 3) == 10
    assert choice.tolist() == [ON_GPU]


def test_equal_costs_are_the_cpus() -> None:
    time = np.array([[5.0, 5.0, 5.0], [5.0, 6.0, 7.0], [7.0, 6.0, 5.0], [3.0, np.inf, 3.0]])
    options = Options(np.zeros((4, 3, 3)), time, np.zeros(3))
    assert greedy(options).tolist() == [ON_CPU, ON_GPU, ON_NDP, ON_GPU]
