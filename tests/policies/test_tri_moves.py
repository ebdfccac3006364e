"""Moves of experts between memories, and replays of them: each rule by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tri_layers import drawn_layer, round_costs

from moesaic.policies.tri import baselines, fast, migrate, refine
from moesaic.policies.tri.layer import (
    ALL_DEVICES,
    CPU_TIME,
    FIRST_DIMM,
    GPU_TIME,
    NO_DIMM,
    PCIE_TIME,
    Layer,
    Places,
    busy_times,
    layer_of,
    options_of,
)
from moesaic.policies.tri.migrate import IN_HBM, STRIPED, Lanes
from moesaic.policies.tri.refine import greedy
from moesaic.reproductions.trimoe.makespan_model import Window, replay
from moesaic.reproductions.trimoe.systems import SYSTEMS


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
    predicted, moved = np.array([5.0, 0, 2, 2]), np.zeros(4, dtype=np.bool_)
    assert migrate.coldest_resident(layer, predicted, moved) == 2, "the first of equals"
    moved[2] = True
    assert migrate.coldest_resident(layer, predicted, moved) == 3, "one that is under way stays"
    no_layer = layer_of(round_costs(), np.ones(4, int))
    assert migrate.coldest_resident(no_layer, predicted, moved) == -1


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
    held, spread = np.array([resident]), np.array([striped])
    layer = Layer(np.array([4]), held, spread, np.array([dimm]), np.array([span]), np.zeros(9))
    found = np.full(3, -9)
    lanes = lanes_of(list(free), [space] * 4)
    count = migrate.destinations(layer, lanes, np.array(kinds), 100.0, idle, 0, found)
    return [int(to) for to in found[:count]]


def test_where_an_expert_could_go() -> None:
    assert goes_to() == [IN_HBM, STRIPED, 2]
    assert goes_to(striped=True, dimm=NO_DIMM) == [IN_HBM, 2]
    assert goes_to(resident=True) == []
    assert goes_to(span=2) == [IN_HBM], "a split expert stays where it is"
    assert goes_to(striped=True) == [IN_HBM], "and one with a copy"
    assert goes_to(idle=0) == [IN_HBM, STRIPED], "it is there"
    assert goes_to(dimm=1, idle=0) == [IN_HBM, STRIPED, 0]
    assert goes_to(idle=-1) == [IN_HBM, STRIPED], "all are full"


def test_kinds_that_are_switched_off_go_nowhere() -> None:
    assert goes_to(kinds=(False, True, True)) == [STRIPED, 2]
    assert goes_to(kinds=(True, False, True)) == [IN_HBM, 2]
    assert goes_to(kinds=(True, True, False)) == [IN_HBM, STRIPED]
    assert goes_to(striped=True, dimm=NO_DIMM, kinds=(True, True, False)) == [IN_HBM, 2]
    assert goes_to(kinds=(False, False, True), dimm=1) == [2]
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
    moved = np.zeros(16, dtype=np.bool_)
    made = 0
    for _ in range(6):
        move = np.zeros(migrate.MOVE_WORDS, dtype=np.int64)
        before = busy.copy()
        if not migrate.one_move(
            costs, layer, predicted, lanes, np.ones(3, np.bool_), ALL_DEVICES, options, choice,
            busy, moved, move,
        ):  # fmt: skip
            assert (busy == before).all()
            break
        made += 1
        assert moved[move[1]]
        assert moved.sum() == made, "each is moved once"
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


@pytest.mark.parametrize(("small", "moves"), [(0.1, 0), (0.12, 1)])
def test_a_move_that_gains_less_than_a_hundredth_is_not_made(small: float, moves: int) -> None:
    """DIMM 0 is busy for 400 with one expert and for 4 (or 4.8) with another, DIMM 1 is idle."""
    costs, predicted = round_costs(contention="none"), np.array([10.0, small])
    layer = layer_of(costs, np.array([10, 1]), dimm=np.array([0, 0]))
    near_data, rebalance = (np.array([False, False, True]) for _ in range(2))
    found = np.zeros((migrate.MAX_MOVES, migrate.MOVE_WORDS), dtype=np.int64)
    lanes = migrate.idle_lanes(costs, 1000.0, 100.0)
    assert migrate.plan_moves(costs, layer, predicted, near_data, lanes, rebalance, found) == moves


def one_dimm(experts: int = 4) -> Places:
    nothing = np.zeros(experts, np.bool_)
    return Places(nothing, nothing.copy(), np.zeros(experts, np.int64), np.ones(experts, np.int64))


def test_a_move_is_effective_when_it_has_arrived() -> None:
    """One may start in the window of 100, and takes 500 over the link: until then everything is
    computed where it was."""
    window = Window(window_ns=100.0, link_ns=500.0)
    run = replay(SYSTEMS["trimoe"], round_costs(), [one_dimm()], window,
                 profile=np.full((1, 4), 4.0))  # fmt: skip
    now, effective = 0.0, False
    for number in range(8):
        now += 100.0
        found = run.step(np.full((1, 4), 4))
        if number == 0:
            assert found.moves.sum() == 1
        effective = now >= 500.0
        assert (run.places[0].dimm != 0).any() == effective
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
        run = replay(SYSTEMS["trimoe"], costs, [one_dimm()], Window(100.0, 500.0),
                     profile=np.full((1, 4), 4.0))  # fmt: skip
        idle = replay(SYSTEMS["trimoe"], costs, [one_dimm()], Window(100.0, 500.0))
        moving, still = (each.step(np.array([[4, 0, 0, 0]])) for each in (run, idle))
        assert still.moves.sum() == 0, "nothing is predicted"
        gained = moving.busy_ns[0] - still.busy_ns[0]
        assert gained[FIRST_DIMM] == pytest.approx(busy)
        assert moving.makespan_ns[0] == moving.busy_ns[0].max()


def test_a_copy_to_the_gpu_that_goes_on_occupies_the_link() -> None:
    """It takes 100, and the window is over after 50. Expert 2 is computed on the CPU."""
    layout = Places(
        np.array([False, True, False]), np.ones(3, np.bool_), np.full(3, NO_DIMM),
        np.ones(3, np.int64),
    )  # fmt: skip
    run = replay(SYSTEMS["+refinement"], round_costs(), [layout], Window(50.0, 500.0),
                 profile=np.array([[60.0, 1.0, 4.0]]))  # fmt: skip
    found = run.step(np.array([[0, 0, 4]]))
    assert found.moves.tolist() == [1, 0, 0]
    assert found.busy_ns[0, [GPU_TIME, CPU_TIME, PCIE_TIME]].tolist() == [0, 20, 50]
    assert run.places[0].resident.tolist() == [False] * 3, "one has left, one is not there yet"
    run.step(np.array([[0, 0, 4]]))
    assert run.places[0].resident.tolist() == [True, False, False]


def test_what_arrives_with_the_end_of_the_window_is_there() -> None:
    run = replay(SYSTEMS["trimoe"], round_costs(), [one_dimm()], Window(500.0, 500.0),
                 profile=np.full((1, 4), 4.0))  # fmt: skip
    run.step(np.full((1, 4), 4))
    assert (run.places[0].dimm != 0).sum() == 1


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_systems_divide_a_layer_as_they_say(name: str) -> None:
    costs = round_costs()
    layer = drawn_layer(np.random.default_rng(7), costs, 24)
    loads, resident = layer.loads, layer.resident
    run = replay(SYSTEMS[name], costs, [one_dimm(24)], Window(50.0, 500.0))
    options = options_of(costs, layer, run.layout.devices)
    expected = {
        "klotski": lambda: baselines.klotski(options),
        "enhanced-ktransformers": lambda: baselines.enhanced_ktransformers(
            options, loads, resident
        ),
        "monde": lambda: baselines.monde(options, loads, resident),
        "+cpu": lambda: greedy(options),
        "+refinement": lambda: refine.trimoe(options, refine.REFINE),
        "trimoe": lambda: refine.trimoe(options, refine.REFINE),
        "trimoe-one-candidate": lambda: refine.trimoe(options, refine.REFINE, 1),
        "trimoe-least-first": lambda: refine.trimoe_from_the_end(options, refine.REFINE),
        "tri-balanced": lambda: fast.balanced(options, fast.ROUNDS, fast.KICKS)[0],
    }
    schedule = name.removesuffix("-smooth").removesuffix("-localized")
    assert run.schedule.choose(options, loads, resident).tolist() == expected[schedule]().tolist()
    devices = {"klotski": [1, 0, 0], "enhanced-ktransformers": [1, 1, 0], "monde": [1, 0, 1]}
    uses = [bool(d) for d in devices.get(schedule, [1, 1, 1])]
    assert run.layout.devices.tolist() == run.schedule.devices.tolist() == uses


def test_systems_move_only_what_they_move() -> None:
    """Everything lies in one DIMM, nothing in GPU memory: a layout that relays or rebalances moves
    experts apart, one that only prefetches has no victim."""
    for name, moves in (("+refinement", False), ("monde", False), ("tri-balanced", True)):
        run = replay(SYSTEMS[name], round_costs(), [one_dimm()], Window(100.0, 500.0),
                     profile=np.full((1, 4), 4.0))  # fmt: skip
        assert (run.step(np.full((1, 4), 4)).moves.sum() > 0) == moves, name


def test_a_copy_that_goes_on_reads_host_memory_as_well() -> None:
    """Half of it is left: half of a striped read on every channel and DIMM, and for the CPU, which
    waits meanwhile."""
    costs = round_costs(shared=True)
    nothing = Places(
        np.zeros(1, np.bool_), np.ones(1, np.bool_), np.full(1, NO_DIMM), np.ones(1, np.int64)
    )
    run = replay(SYSTEMS["+refinement"], costs, [nothing], Window(50.0, 500.0))
    run._lanes.free_ns[0] = 0.5 * costs.pcie_ns
    base = run._moving_ns()
    assert (base[PCIE_TIME], base[CPU_TIME]) == (50.0, 10.0)
    assert base[FIRST_DIMM : FIRST_DIMM + 4].tolist() == [5.0] * 4
    assert base[FIRST_DIMM + 4 :].tolist() == [10.0] * 2
