"""TriMoE's own rule for moves (section 4.3): classes, the skew that triggers, and the DIMMs."""

from __future__ import annotations

import numpy as np
import pytest
from tri_layers import round_costs

from moesaic.policies.tri.class_moves import Classes, limit_behind, plan_class_moves
from moesaic.policies.tri.layer import NO_DIMM, Layer
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
)

ALL = (True, True, True)


def planned(
    dimm: list[int],
    predicted: list[float],
    resident: tuple[int, ...] = (),
    hot: int = 0,
    warm: int = 0,
    margin: float = 0.0,
    skew: float = 1.2,
    kinds: tuple[bool, bool, bool] = ALL,
    still: tuple[int, ...] = (),
    window: float = 1000.0,
    space: float = np.inf,
) -> tuple[list[list[int]], Layer, Lanes]:
    """Four DIMMs; a move over a link takes 100, over PCIe as well."""
    costs, n = round_costs(contention="none"), len(dimm)
    where, numbers = np.array(dimm), np.arange(n)
    loads = np.maximum(np.ceil(predicted), 1).astype(np.int64)
    layer = Layer(
        loads, np.isin(numbers, resident), where < 0, where, np.ones(n, np.int64), np.zeros(9)
    )
    lanes = idle_lanes(costs, window, 100.0, False, space)
    moves = np.zeros((MAX_MOVES, MOVE_WORDS), dtype=np.int64)
    count = plan_class_moves(
        costs, layer, np.array(predicted), np.isin(numbers, still), lanes, np.array(kinds),
        Classes(hot, warm, margin, skew), moves,
    )  # fmt: skip
    return moves[:count].tolist(), layer, lanes


def test_a_class_ends_half_way_to_the_next_load() -> None:
    ordered = np.array([9.0, 5.0, 1.0])
    assert [limit_behind(ordered, count) for count in (0, 1, 2)] == [np.inf, 7.0, 3.0]
    assert limit_behind(ordered, 3) < 0, "all are in it"


def test_a_hot_expert_takes_the_place_of_the_coldest() -> None:
    moves, layer, lanes = planned([-1] * 4, [9, 2, 1, 3], resident=(1, 2), hot=2, warm=2)
    assert moves[:2] == [[PREFETCH, 0, IN_HBM, 2], [PREFETCH, 3, IN_HBM, 1]]
    assert layer.resident.tolist() == [True, False, False, True]
    assert lanes.free_ns[0] == 200


def test_prefetches_come_before_other_moves() -> None:
    """The relayout's benefit is larger: 25 tokens behind the limit of 25 against 1."""
    moves, _, _ = planned([0, -1, -1, 1], [50, 52, 51, 0], resident=(2,), hot=1, warm=2)
    assert [move[0] for move in moves] == [PREFETCH, RELAYOUT]


def test_a_warm_expert_leaves_its_dimm_and_a_cold_one_its_stripes() -> None:
    """Limit 5 of 20, 8, 2, 1 with two warm ones: 15 behind it for the first, 3 for the second."""
    moves, layer, _ = planned([0, -1, -1, 1], [20, 2, 8, 1], warm=2)
    assert moves == [[RELAYOUT, 0, STRIPED, -1], [RELAYOUT, 1, 0, -1]]
    assert layer.dimm.tolist() == [NO_DIMM, 0, NO_DIMM, 1]
    assert layer.striped.tolist() == [True, False, True, False]


def test_what_suits_its_class_stays() -> None:
    dimm, loads = [-1, -1, 0, 1, 2, 3], [20.0, 10, 1, 1, 1, 1]
    assert planned(dimm, loads, warm=2)[0] == []
    assert planned(dimm, loads, resident=(0,), hot=1, warm=1)[0] == []


@pytest.mark.parametrize(("margin", "moves"), [(0.0, 2), (0.4, 0)])
def test_a_load_has_to_pass_the_limit_by_the_margin(margin: float, moves: int) -> None:
    """Limit 5; 6 is a fifth above it, 4 a fifth below."""
    found, _, _ = planned([0, -1, -1, 1], [6, 4, 9, 1], warm=2, margin=margin, skew=9)
    assert len(found) == moves


@pytest.mark.parametrize(("skew", "moves"), [(1.5, 1), (1.7, 0)])
def test_skew_triggers_a_move_from_the_busiest_dimm_to_the_idlest(skew: float, moves: int) -> None:
    """Loads 8, 6, 4 and 2: 1.6 of the mean. Of 4, 3 and 1 the 3 lowers the larger load most."""
    dimm, loads = [0, 0, 0, 1, 2, 3], [4.0, 3, 1, 6, 4, 2]
    found, layer, lanes = planned(dimm, loads, skew=skew)
    assert found == [[REBALANCE, 1, 3, -1]][:moves]
    if moves:
        assert layer.dimm[1] == 3
        assert lanes.free_ns.tolist() == [0, 100, 0, 0, 100]


def test_experts_leave_the_busiest_dimm_one_by_one() -> None:
    """Four in one DIMM; each goes to the idlest of the others, until the loads are alike."""
    found, layer, _ = planned([0] * 4, [4.0] * 4)
    assert [move[0] for move in found] == [REBALANCE] * 3
    assert sorted(layer.dimm.tolist()) == [0, 1, 2, 3]


def test_warm_experts_do_not_count_as_load_of_their_dimm() -> None:
    """DIMM 0's warm expert goes to stripes; the cold ones are balanced without it."""
    found, _, _ = planned([0, 0, 1, 2, 3], [40, 2, 2, 2, 2], warm=1)
    assert found == [[RELAYOUT, 0, STRIPED, -1]]


def test_moves_keep_to_window_kinds_memory_and_what_is_under_way() -> None:
    crowd: tuple[list[int], list[float]] = ([0] * 4, [4.0] * 4)
    assert len(planned(*crowd, window=200.0)[0]) == 2, "the link of the busiest is full"
    assert planned(*crowd, kinds=(True, True, False))[0] == []
    assert planned(*crowd, space=0.0)[0] == []
    assert {move[1] for move in planned(*crowd, still=(0, 1))[0]} <= {2, 3}
    warm = planned([0, -1, 1, 2], [9, 1, 1, 1], warm=1, kinds=(True, False, False))[0]
    assert warm == []


@pytest.mark.parametrize("seed", range(6))
def test_every_expert_is_in_one_place_afterwards(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dimm, loads = rng.integers(-1, 4, 24), rng.lognormal(0.5, 1.3, 24).clip(0, 60)
    resident = tuple(rng.permutation(24)[:3].tolist())
    found, layer, lanes = planned(
        dimm.tolist(), loads.tolist(), resident, hot=3, warm=6, space=40.0
    )
    assert found
    assert layer.resident.sum() == 3
    assert (layer.striped == (layer.dimm == NO_DIMM)).all()
    assert (40.0 - lanes.space).sum() == pytest.approx(0.0, abs=1e-9)
    assert len({move[1] for move in found}) == len(found), "each moves once"
