"""Predicting loads, laying experts out, moving them: equation 8 by hand, and what always holds."""

from __future__ import annotations

import numpy as np
import pytest
from tri_layers import round_costs

from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.tri.joint import joint_layout, with_copies, with_splits
from moesaic.policies.tri.layer import NO_DIMM, Layer, Places, makespan, options_of
from moesaic.policies.tri.layout import offline_layout, spread
from moesaic.policies.tri.migrate import (
    IN_HBM,
    MAX_MOVES,
    MOVE_WORDS,
    PREFETCH,
    REBALANCE,
    RELAYOUT,
    STRIPED,
    Lanes,
    idle_lanes,
    idlest,
    plan_moves,
)
from moesaic.policies.tri.predictor import LoadPredictor
from moesaic.policies.tri.refine import trimoe
from moesaic.reproductions.trimoe.beyond import shuffled
from moesaic.reproductions.trimoe.makespan_model import Window, replay
from moesaic.reproductions.trimoe.sec55 import (
    COLD,
    HOT,
    WARM,
    class_accuracy,
    classes,
    decision_accuracy,
)
from moesaic.reproductions.trimoe.systems import SYSTEMS

ALL = np.array([True, True, True])


def test_equation_8() -> None:
    predictor = LoadPredictor(1, 2, alpha=0.3)
    predictor.observe(0, np.array([10, 0]))
    assert predictor.loads[0].tolist() == [10, 0]
    predictor.observe(0, np.array([20, 10]))
    assert predictor.loads[0] == pytest.approx([0.3 * 20 + 0.7 * 10, 3.0])
    with pytest.raises(ImpossibleSetting, match="alpha"):
        LoadPredictor(1, 2, alpha=0.0)


def test_the_predictor_of_deepseek_v2_takes_38_kb() -> None:
    assert LoadPredictor(59, 160).num_bytes == 37_760


def test_accuracy_counts_predictions_that_matter() -> None:
    assert classes(np.array([1, 9, 5, 5]), 1, 1).tolist() == [COLD, HOT, WARM, COLD]
    predicted, actual = np.array([9, 8, 1, 0]), np.array([8, 0, 9, 1])
    # Predicted hot: 0, warm: 1. It was hot: 2, warm: 0. Nothing came true.
    assert class_accuracy(predicted, actual, 1, 1) == 0.0
    assert class_accuracy(actual, actual, 1, 1) == 1.0
    layout = np.array([HOT, COLD, WARM, COLD])  # 1 would become warm, 2 cold; neither is so
    assert decision_accuracy(predicted, actual, layout, 1, 1) == (2, 0)
    assert decision_accuracy(predicted, predicted, layout, 1, 1) == (2, 2)


def test_spreading_is_largest_first_to_the_emptiest() -> None:
    assert spread(np.array([5.0, 4, 3, 3]), 2).tolist() == [0, 1, 1, 0]


def drawn_loads(seed: int, samples: int = 8, experts: int = 24) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.minimum(rng.poisson(rng.lognormal(0.5, 1.3, experts), (samples, experts)), 64)


def check_layout(layout: Places, dimms: int, slots: int) -> None:
    assert layout.resident.sum() == slots
    assert ((layout.dimm >= NO_DIMM) & (layout.dimm < dimms)).all()
    assert (layout.striped | (layout.dimm != NO_DIMM)).all(), "every expert is in main memory"


@pytest.mark.parametrize("seed", range(6))
def test_an_offline_layout_has_every_expert_once(seed: int) -> None:
    costs, loads = round_costs(), drawn_loads(seed)
    layout = offline_layout(costs, loads, 3)
    check_layout(layout, costs.dimms, 3)
    assert not (layout.striped & (layout.dimm != NO_DIMM)).any()
    total = loads.sum(axis=0)
    assert total[layout.resident].min() >= total[~layout.resident].max()
    wrong = shuffled(layout, 0.25, seed)
    check_layout(wrong, costs.dimms, 3)
    assert sorted(wrong.dimm) == sorted(layout.dimm)


def mean_makespan(layout: Places, loads: np.ndarray) -> float:
    costs = round_costs()
    problems = (layout.active(costs, step)[1] for step in loads)
    found = [options_of(costs, problem) for problem in problems]
    return float(np.mean([makespan(options, trimoe(options, 64)) for options in found]))


def test_joint_optimisation_improves_the_layout() -> None:
    costs, gains = round_costs(), []
    for seed in range(4):
        loads = drawn_loads(seed)
        before, after = offline_layout(costs, loads, 3), joint_layout(costs, loads, 3)
        check_layout(after, costs.dimms, 3)
        gains.append(mean_makespan(before, loads) / mean_makespan(after, loads))
    assert np.mean(gains) > 1.02


def test_copies_and_splits_are_of_the_most_used_localized_experts() -> None:
    costs, loads = round_costs(), drawn_loads(1)
    layout = offline_layout(costs, loads, 3)
    local = np.flatnonzero(layout.dimm != NO_DIMM)
    first = local[np.argmax(loads.sum(axis=0)[local])]
    copied = with_copies(layout, loads, 1)
    assert np.flatnonzero(copied.striped & (copied.dimm != NO_DIMM)).tolist() == [first]
    split = with_splits(layout, loads, 1, 2, costs.dimms)
    assert np.flatnonzero(split.span > 1).tolist() == [first]
    assert split.dimm[first] in (0, 2)


def planned(
    dimm: list[int],
    predicted: list[float],
    resident: tuple[int, ...] = (),
    **lanes: float,
) -> tuple[list[list[int]], Layer, Lanes]:
    costs, n = round_costs(contention="none"), len(dimm)
    where = np.array(dimm)
    held = np.isin(np.arange(n), resident)
    loads = np.maximum(np.ceil(predicted), 1).astype(np.int64)
    layer = Layer(loads, held, where < 0, where, np.ones(n, np.int64), np.zeros(9))
    left = idle_lanes(costs, lanes.get("window", 300.0), lanes.get("link", 100.0),
                      bool(lanes.get("carry", False)), lanes.get("space", np.inf))  # fmt: skip
    moves = np.zeros((MAX_MOVES, MOVE_WORDS), dtype=np.int64)
    count = plan_moves(costs, layer, np.array(predicted), ALL, left, ALL, moves)
    return moves[:count].tolist(), layer, left


def test_a_hot_expert_is_exchanged_for_the_coldest_resident_one() -> None:
    """60 tokens: 300 on the CPU, 100 over PCIe, 70 from GPU memory."""
    moves, layer, left = planned([-1, -1, -1], [60, 1, 5], resident=(1, 2))
    assert moves[0] == [PREFETCH, 0, IN_HBM, 1]
    assert layer.resident.tolist() == [True, False, True]
    assert left.free_ns[0] == 100


def test_a_localized_expert_that_became_warm_is_striped() -> None:
    """20 tokens: 800 in the DIMM, 100 elsewhere; from stripes as well."""
    moves, layer, left = planned([0, 0, 0, 0], [4, 4, 4, 4])
    assert moves
    assert {kind for kind, *_ in moves} <= {RELAYOUT, REBALANCE}
    assert left.free_ns[1] == 100 * len(moves), "all leave DIMM 0 over its link"
    assert (layer.dimm == 0).sum() == 4 - len(moves)
    single, after, _ = planned([0, -1, -1], [8, 1, 1], window=100.0)
    assert single == [[RELAYOUT, 0, STRIPED, -1]]
    assert after.striped[0]


def test_moves_fit_into_the_window_and_the_memory() -> None:
    full, _, left = planned([0, 0, 0, 0], [4, 4, 4, 4], window=250.0)
    assert len(full) == 2
    assert (left.free_ns <= 250).all()
    assert planned([0, 0, 0, 0], [4, 4, 4, 4], window=90.0)[0] == []
    carried, _, over = planned([0, 0, 0, 0], [4, 4, 4, 4], window=90.0, carry=True)
    assert len(carried) == 1, "one may start in the window"
    assert over.free_ns[1] == 100
    assert planned([0, 0, 0, 0], [4, 4, 4, 4], space=0.1)[0] == [], "no DIMM has space"


@pytest.mark.parametrize("seed", range(8))
def test_moves_keep_every_expert_in_one_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dimm = rng.integers(-1, 4, 20)
    resident = tuple(rng.permutation(20)[:3].tolist())
    predicted = rng.lognormal(0.5, 1.3, 20).clip(0, 60)
    moves, layer, left = planned(dimm.tolist(), predicted.tolist(), resident, space=30.0)
    assert layer.resident.sum() == 3
    assert (layer.striped == (layer.dimm == NO_DIMM)).all()
    taken = 30.0 - left.space  # in whole experts, bytes conserved
    assert taken.sum() == pytest.approx(0.0, abs=1e-9)
    changed = np.flatnonzero(layer.dimm != dimm)
    assert set(changed.tolist()) == {e for kind, e, *_ in moves if kind != PREFETCH}


def test_a_replay_adapts_its_layout_and_gains_by_it() -> None:
    """Everything lies in one DIMM at first; relayout and rebalancing repair that."""
    costs = round_costs()
    rng = np.random.default_rng(0)
    steps = rng.poisson(2.0, (12, 2, 16))
    bad = Places(
        np.zeros(16, np.bool_), np.zeros(16, np.bool_), np.zeros(16, np.int64),
        np.ones(16, np.int64),
    )  # fmt: skip
    window = Window(window_ns=200.0, link_ns=100.0)
    means = {}
    for name in ("+refinement", "trimoe"):
        run = replay(SYSTEMS[name], costs, [bad, bad], window)
        found = [run.step(loads) for loads in steps]
        means[name] = np.mean([step.makespan_ns.mean() for step in found[6:]])
        for layout in run.places:
            check_layout(layout, costs.dimms, 0)
    assert means["trimoe"] < 0.7 * means["+refinement"]
    assert (bad.dimm == 0).all(), "a replay works on its own copies"


def test_a_full_dimm_receives_nothing_however_idle() -> None:
    busy = np.array([0.0, 0.0, 0.0, 5.0, 1.0, 9.0, 3.0])  # GPU, CPU, PCIe, then four DIMMs
    assert idlest(busy, np.array([1.0, 0.0, 1.0, 1.0])) == 3
    assert idlest(busy, np.array([1.0, 1.0, 1.0, 1.0])) == 1
    assert idlest(busy, np.zeros(4)) == -1


def test_a_rebalancing_move_takes_link_time_at_both_ends() -> None:
    """Eight experts in one DIMM, none in the others: every move is 50 of both DIMMs' lanes."""
    costs = round_costs()
    n = 8
    layer = Layer(
        np.full(n, 4), np.zeros(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n, np.int64),
        np.ones(n, np.int64), np.zeros(3 + 4 + 2),
    )  # fmt: skip
    lanes = idle_lanes(costs, 1000.0, 50.0)
    moves = np.zeros((MAX_MOVES, MOVE_WORDS), dtype=np.int64)
    kinds = np.array([False, False, True])
    count = plan_moves(costs, layer, np.full(n, 4.0), ALL, lanes, kinds, moves)
    assert count >= 3
    assert (moves[:count, 0] == REBALANCE).all()
    assert len(set(moves[:count, 1].tolist())) == count, "none moves twice"
    expected = np.zeros(5)
    expected[1] = 50.0 * count
    for to in moves[:count, 2]:
        expected[to + 1] += 50.0
    assert lanes.free_ns.tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_a_localized_layout_stripes_nothing(seed: int) -> None:
    """Host copies of what is in GPU memory are localized as well; the units' loads are balanced."""
    costs, loads = round_costs(), drawn_loads(seed)
    layout = offline_layout(costs, loads, 3, localized=True)
    check_layout(layout, costs.dimms, 3)
    assert not layout.striped.any()
    assert layout.resident.tolist() == offline_layout(costs, loads, 3).resident.tolist()
    near = np.maximum(40 * loads, 30 * (loads > 0)).mean(axis=0) * ~layout.resident
    busy = np.bincount(layout.dimm, weights=near, minlength=costs.dimms)
    assert busy.max() - busy.min() <= near.max()
