"""Parts of the three-device policies, each by hand: costs, options, cuts, moves, replays."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tri_layers import drawn_layer, round_costs

from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.tri import migrate
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP, TriCosts, tri_costs
from moesaic.policies.tri.layer import (
    ALL_DEVICES,
    CPU_TIME,
    FIRST_DIMM,
    GPU_TIME,
    NO_DIMM,
    PCIE_TIME,
    Layer,
    Options,
    busy_times,
    layer_of,
    num_resources,
    options_of,
)
from moesaic.policies.tri.layout import Layout, _cut, expected_times, offline_layout
from moesaic.policies.tri.migrate import IN_HBM, STRIPED, Lanes
from moesaic.policies.tri.predictor import LoadPredictor, class_accuracy
from moesaic.policies.tri.refine import greedy
from moesaic.policies.tri.replay import TRI_SYSTEMS, Window, replay


def test_machines_at_the_limits_are_possible() -> None:
    assert round_costs(channels=1).striped_busy_ns == 20 / 4
    assert round_costs(dimms=1, channels=1).units == 1
    assert [round_costs(units=units).units for units in (None, 0, 4)] == [4, 0, 4]
    for units in (-1, 5):
        with pytest.raises(ImpossibleSetting, match=f"{units} of 4 DIMMs compute"):
            round_costs(units=units)
    for wrong in ({"dimms": 0, "channels": 1}, {"channels": 0}, {"internal_ns": 0}):
        with pytest.raises(ImpossibleSetting):
            round_costs(**wrong)


def test_tables_of_whole_numbers_are_costs_too() -> None:
    costs = tri_costs(
        np.ones((3, 4), dtype=np.int64), pcie_ns=1, striped_ns=1, localized_ns=1, internal_ns=1,
        dimms=2, channels=2,
    )  # fmt: skip
    assert costs.compute.dtype == np.float64, "compiled code takes no other"
    assert costs.tokens == 3


@pytest.mark.parametrize("mask", list(product([False, True], repeat=3)))
def test_devices_that_a_system_has_not_serve_nothing(mask: tuple[bool, bool, bool]) -> None:
    costs = round_costs(shared=True)
    layer = drawn_layer(np.random.default_rng(3), costs, 30)
    every, some = options_of(costs, layer), options_of(costs, layer, np.array(mask))
    for option, allowed in zip((ON_GPU, ON_CPU, ON_NDP), mask, strict=True):
        if allowed:
            assert (some.time[:, option] == every.time[:, option]).all()
            assert (some.use[:, option] == every.use[:, option]).all()
        else:
            assert np.isinf(some.time[:, option]).all()
            assert not some.use[:, option].any()


def options_at(costs: TriCosts, resident: bool, striped: bool, dimm: int, span: int) -> Options:
    where = np.array([dimm])
    placed = np.array([resident]), np.array([striped]), where, np.array([span])
    return options_of(costs, Layer(np.array([2]), *placed, np.zeros(num_resources(costs))))


def test_an_expert_in_gpu_memory_alone_runs_there() -> None:
    only = options_at(round_costs(), resident=True, striped=False, dimm=NO_DIMM, span=1)
    assert np.isfinite(only.time[0]).tolist() == [True, False, False]
    assert np.flatnonzero(only.use[0, ON_GPU]).tolist() == [GPU_TIME]


def test_a_split_expert_occupies_its_own_dimms_and_their_channels() -> None:
    """In DIMMs 2 and 3, on channels 0 and 1: 40 of the read from each, 40 of computing in each."""
    split = options_at(round_costs(shared=True), resident=False, striped=False, dimm=2, span=2)
    first = FIRST_DIMM + 4
    assert split.use[0, ON_NDP, FIRST_DIMM:first].tolist() == [0, 0, 40, 40]
    assert split.use[0, ON_CPU, FIRST_DIMM:first].tolist() == [0, 0, 40, 40]
    assert split.use[0, ON_CPU, first:].tolist() == [40, 40]
    assert split.use[0, ON_GPU, [CPU_TIME, PCIE_TIME]].tolist() == [40, 100]


@pytest.mark.parametrize(("dimm", "span", "able"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_only_dimms_with_a_unit_compute(dimm: int, span: int, able: bool) -> None:
    found = options_at(round_costs(units=2), False, False, dimm, span)
    assert np.isfinite(found.time[0]).tolist() == [True, True, able]


def test_expected_times_count_steps_without_tokens() -> None:
    """Loads 2 and 0, 0 and 1: each is active in one of two steps."""
    mean = expected_times(round_costs(), np.array([[2, 0], [0, 1]]))
    assert mean[ON_GPU].tolist() == [12 / 2, 11 / 2]
    assert mean[ON_CPU].tolist() == [20 / 2, 20 / 2], "the striped read"
    assert mean[ON_NDP].tolist() == [80 / 2, 40 / 2]


def slow_cut(
    costs: TriCosts, mean: np.ndarray, activity: np.ndarray, rest: np.ndarray, gpu: float, cpu: bool
) -> int:
    """Every cut by itself. Misses go to GPU and CPU so that both end together."""
    ends = []
    for cut in range(len(rest) + 1):
        striped, local = rest[:cut], rest[cut:]
        near = sum(mean[ON_NDP, e] for e in local) / costs.units
        dimm = near + costs.striped_busy_ns * sum(activity[e] for e in striped)
        miss = costs.pcie_ns * sum(activity[e] for e in striped)
        on_cpu = sum(mean[ON_CPU, e] for e in striped) if cpu else np.inf
        if cpu and on_cpu <= gpu:
            host = on_cpu  # all of it on the CPU, which still ends first
        elif cpu:
            share = (on_cpu - gpu) / (on_cpu + miss)  # of the misses that the GPU loads
            host = gpu + share * miss
        else:
            host = gpu + miss
        ends.append(max(host, dimm))
    return int(np.argmin(ends))


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_the_cut_ends_earliest_of_all(seed: int, cpu: bool) -> None:
    rng = np.random.default_rng(seed)
    costs = round_costs(units=(4, 2)[seed % 2])
    loads = np.minimum(rng.poisson(rng.lognormal(0.3, 1.2, 20), (6, 20)), 64)
    mean, activity = expected_times(costs, loads), (loads > 0).mean(axis=0)
    rest, gpu = np.argsort(-loads.sum(axis=0), kind="stable")[3:], (0.0, 150.0)[seed // 5]
    devices = np.array([True, cpu, True])
    assert _cut(costs, mean, activity, rest, gpu, devices) == slow_cut(
        costs, mean, activity, rest, gpu, cpu
    )


@pytest.mark.parametrize("changes", [{"units": 0}, {}])
def test_without_units_everything_is_striped(changes: dict[str, int]) -> None:
    devices = ALL_DEVICES if changes else np.array([True, True, False])
    layout = offline_layout(round_costs(**changes), np.ones((2, 6), dtype=np.int64), 2, devices)
    assert layout.striped.all()
    assert (layout.dimm == NO_DIMM).all()


def test_what_is_in_gpu_memory_may_be_stated() -> None:
    held = np.array([False, True, False, False])
    layout = offline_layout(round_costs(), np.array([[9, 1, 1, 1]]), held)
    assert layout.resident.tolist() == held.tolist()
    assert layout.striped[1], "its copy lies where a missed one's would"


def lanes_of(free: list[float], space: list[float], carry: bool = False) -> Lanes:
    return Lanes(np.array(free), np.array(space), 300.0, 100.0, carry)


@pytest.mark.parametrize(
    ("free", "takes", "carry", "expected"),
    [(200, 100, False, True), (201, 100, False, False), (-50, 300, False, True),
     (-50, 301, False, False), (299, 900, True, True), (300, 1, True, False)],
)  # fmt: skip
def test_a_move_starts_and_unless_it_may_be_carried_over_ends_in_the_window(
    free: float, takes: float, carry: bool, expected: bool
) -> None:
    lanes = lanes_of([0.0, free], [1.0], carry)
    assert migrate.has_time(lanes, 1, takes) is expected
    migrate.occupy(lanes, 1, takes)
    assert lanes.free_ns.tolist() == [0.0, max(free, 0) + takes]


def test_the_idlest_dimm_has_space() -> None:
    busy = np.array([9.0, 9, 9, 5, 3, 4, 3, 0, 0])
    assert migrate.idlest(busy, np.ones(4)) == 1, "the first of equals"
    assert migrate.idlest(busy, np.array([1, 0.9, 1, 0.5])) == 2
    assert migrate.idlest(busy, np.full(4, 0.99)) == -1


@pytest.mark.parametrize(
    ("source", "to", "space"),
    [(0, 2, [3, 2, 1, 2]), (0, STRIPED, [2.75, 1.75, 1.75, 1.75]),
     (STRIPED, 1, [2.25, 1.25, 2.25, 2.25])],
)  # fmt: skip
def test_memory_is_given_back_and_taken(source: int, to: int, space: list[float]) -> None:
    left = np.full(4, 2.0)
    migrate.account(left, source, to)
    assert left.tolist() == space


def test_the_coldest_resident_expert_goes() -> None:
    layer = layer_of(round_costs(), np.ones(4, int), resident=np.array([True, False, True, True]))
    assert migrate.coldest_resident(layer, np.array([5.0, 0, 2, 2])) == 2, "the first of equals"
    nobody = layer_of(round_costs(), np.ones(4, int))
    assert migrate.coldest_resident(nobody, np.ones(4)) == -1


def test_the_smooth_peak_is_a_sum_of_eighth_powers() -> None:
    busy, out, into = np.array([10.0, 4]), np.array([5.0, 0]), np.array([0.0, 6])
    assert migrate.smooth_peak(busy, out, into, 10.0) == pytest.approx(0.5**8 + 1)


def test_an_expert_that_is_rarely_active_occupies_little() -> None:
    use = np.ones((3, 3, 2))
    migrate.scale_down(use, np.array([0.25, 1.0, 4.5]), np.array([1, 1, 4]))
    assert use[:, 0, 0].tolist() == [0.25, 1.0, 1.0]


def goes_to(
    resident: bool = False, striped: bool = False, dimm: int = 0, span: int = 1,
    kinds: tuple[bool, bool, bool] = (True, True, True), free: tuple[float, ...] = (0.0,) * 5,
    space: float = 1.0, idle: int = 2,
) -> list[int]:  # fmt: skip
    """A lane has 300, and a move takes 100 over either link."""
    placed = (np.array([each]) for each in (resident, striped, dimm, span))
    layer = Layer(np.array([4]), *placed, np.zeros(9))
    found = np.full(3, -9)
    lanes = lanes_of(list(free), [space] * 4)
    count = migrate.destinations(layer, lanes, np.array(kinds), 100.0, idle, 0, found)
    return found[:count].tolist()


def test_where_an_expert_could_go() -> None:
    assert goes_to() == [IN_HBM, STRIPED, 2]
    assert goes_to(striped=True, dimm=NO_DIMM) == [IN_HBM, 2]
    assert goes_to(resident=True) == []
    assert goes_to(span=2) == [IN_HBM], "a split expert stays where it is"
    assert goes_to(striped=True) == [IN_HBM], "and one with a copy"
    assert goes_to(idle=0) == [IN_HBM, STRIPED], "it is there"
    assert goes_to(idle=-1) == [IN_HBM, STRIPED], "all are full"


def test_kinds_that_are_switched_off_go_nowhere() -> None:
    assert goes_to(kinds=(False, True, True)) == [STRIPED, 2]
    assert goes_to(kinds=(True, False, True)) == [IN_HBM, 2]
    assert goes_to(kinds=(True, True, False)) == [IN_HBM, STRIPED]
    assert goes_to(striped=True, dimm=NO_DIMM, kinds=(True, True, False)) == [IN_HBM, 2]
    assert goes_to(striped=True, dimm=NO_DIMM, kinds=(True, False, True)) == [IN_HBM]


def test_busy_lanes_and_full_memories_take_nothing() -> None:
    assert goes_to(free=(201.0, 0, 0, 0, 0)) == [STRIPED, 2]
    assert goes_to(free=(0, 201.0, 0, 0, 0)) == [IN_HBM], "its own link"
    assert goes_to(free=(0, 0, 0, 201.0, 0)) == [IN_HBM, STRIPED], "the other DIMM's"
    assert goes_to(space=0.25) == [IN_HBM, STRIPED, 2], "a quarter in each of four"
    assert goes_to(space=0.24) == [IN_HBM, 2]


def test_a_moved_expert_is_in_one_place() -> None:
    layer = layer_of(round_costs(), np.ones(3, int), dimm=np.array([1, 1, -1]), span=np.full(3, 2))
    for expert, to in enumerate((STRIPED, 3, IN_HBM)):
        migrate.place(layer, expert, to)
    assert layer.dimm.tolist() == [NO_DIMM, 3, NO_DIMM]
    assert layer.striped.tolist() == [True, False, True], "GPU memory has a copy"
    assert layer.resident.tolist() == [False, False, True]
    assert layer.span.tolist() == [1, 1, 2]


@pytest.mark.parametrize("seed", range(4))
def test_every_move_leaves_a_consistent_account(seed: int) -> None:
    """What each resource is busy with is what follows from where experts lie then."""
    rng, costs = np.random.default_rng(seed), round_costs()
    layer = drawn_layer(rng, costs, 16)
    predicted = layer.loads * rng.uniform(0.3, 1.0, 16)
    options = options_of(costs, layer)
    migrate.scale_down(options.use, predicted, layer.loads)
    choice = greedy(options)
    busy, lanes = busy_times(options, choice), migrate.idle_lanes(costs, 1000.0, 100.0)
    made = 0
    for _ in range(6):
        move = np.zeros(migrate.MOVE_WORDS, dtype=np.int64)
        before = busy.copy()
        if not migrate.one_move(
            costs, layer, predicted, lanes, np.ones(3, np.bool_), ALL_DEVICES, options, choice,
            busy, move,
        ):  # fmt: skip
            assert (busy == before).all()
            break
        made += 1
        fresh = options_of(costs, layer)
        migrate.scale_down(fresh.use, predicted, layer.loads)
        assert options.use == pytest.approx(fresh.use)
        assert np.isfinite(options.time[np.arange(16), choice]).all()
        assert busy == pytest.approx(busy_times(options, choice))
        scale = max(before.max(), busy.max())
        nothing = np.zeros_like(busy)
        peaks = [migrate.smooth_peak(each, nothing, nothing, scale) for each in (before, busy)]
        assert peaks[1] < peaks[0] * 0.99**8 or move[0] == migrate.PREFETCH
    assert made


def one_dimm(experts: int = 4) -> Layout:
    nothing = np.zeros(experts, np.bool_)
    return Layout(nothing, nothing.copy(), np.zeros(experts, np.int64), np.ones(experts, np.int64))


def test_a_move_is_effective_when_it_has_arrived() -> None:
    """One may start in the window of 100, and takes 500 over the link: until then everything is
    computed where it was."""
    window = Window(window_ns=100.0, link_ns=500.0)
    run = replay(TRI_SYSTEMS["trimoe"], round_costs(), [one_dimm()], window,
                 profile=np.full((1, 4), 4.0))  # fmt: skip
    now, effective = 0.0, False
    for number in range(8):
        now += 100.0
        found = run.step(np.full((1, 4), 4))
        if number == 0:
            assert found.moves.sum() == 1
        effective = now >= 500.0
        assert (run.layouts[0].dimm != 0).any() == effective
        if effective:
            break
        now += float(found.makespan_ns[0])
    assert effective
    assert number > 0


def test_what_is_under_way_occupies_the_layer() -> None:
    """After the window 400 of the move's 500 are left: four fifths of reading the expert inside
    the DIMM. Nothing where host reads and DIMMs do not disturb each other."""
    for contention, busy in (("own-share", 0.8 * 30), ("none", 0.0)):
        costs = round_costs(contention=contention)
        run = replay(TRI_SYSTEMS["trimoe"], costs, [one_dimm()], Window(100.0, 500.0),
                     profile=np.full((1, 4), 4.0))  # fmt: skip
        idle = replay(TRI_SYSTEMS["trimoe"], costs, [one_dimm()], Window(100.0, 500.0))
        moving, still = (each.step(np.array([[4, 0, 0, 0]])) for each in (run, idle))
        assert still.moves.sum() == 0, "nothing is predicted"
        gained = moving.busy_ns[0] - still.busy_ns[0]
        assert gained[FIRST_DIMM] == pytest.approx(busy)
        assert moving.makespan_ns[0] == moving.busy_ns[0].max()


def test_systems_move_only_what_they_move() -> None:
    for name, kinds in (("trimoe-refined", [True, False, False]), ("tri-balanced", [True] * 3)):
        assert TRI_SYSTEMS[name].kinds.tolist() == kinds


def test_predictions_start_from_a_profile_and_may_forget_everything() -> None:
    predictor = LoadPredictor(2, 2, alpha=1.0)
    predictor.start(np.array([[1.0, 2], [3, 4]]))
    predictor.observe(1, np.array([10, 0]))
    assert predictor.loads.tolist() == [[1, 2], [10, 0]]
    halves = LoadPredictor(1, 1, alpha=0.5)
    halves.start(np.array([[4.0]]))
    halves.observe(0, np.array([0]))
    assert halves.loads.tolist() == [[2.0]]
    with pytest.raises(ImpossibleSetting):
        LoadPredictor(1, 1, alpha=1.01)
    assert class_accuracy(np.ones(3), np.ones(3), 0, 0) == 1.0, "nothing was predicted"
