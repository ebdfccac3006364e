"""TriMoE's layout at run time: what it measures, and which moves it proposes of what it sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_up import small_model
from moesaic.core.layer_plan import Move
from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId
from moesaic.core.view import Flight, View
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import Belief, warm_up
from moesaic.policies.layout import layouts
from moesaic.policies.layout.base import Profile
from moesaic.policies.layout.trimoe import TriMoeLayout
from moesaic.policies.policy_choice import choose
from more_devices import with_four_dimms

LAYERS, EXPERTS, SLOTS = 3, 8, 3
MODEL = small_model(layers=LAYERS, experts=EXPERTS, top_k=3)
HOT = 40.0


def layout_of(text: str) -> TriMoeLayout:
    made = choose(layouts, text).create(layouts, LAYERS, EXPERTS)
    assert isinstance(made, TriMoeLayout)
    return made


def seen(where: list[str], resident: int | None = None) -> tuple[View, Belief]:
    """Layer 1's experts in these placements (others are striped), one in GPU memory."""
    machine = SimMachine(Physics(with_four_dimms(), MODEL), SLOTS)
    belief = warm_up(machine, 64, machine.topology)
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            name = where[expert] if layer == 1 else "dram"
            placement = machine.topology.placement_index.get(f"whole@{name}", IN_DRAM)
            machine.memory.place([ExpertId(layer, expert)], placement)
    if resident is not None:
        machine.memory.place([ExpertId(1, resident)], IN_VRAM)
    return machine.view(0), belief


def with_window(layout: TriMoeLayout, loads: list[float], window_ns: int = 10**6) -> TriMoeLayout:
    predicted = np.zeros((LAYERS, EXPERTS))
    predicted[1] = loads
    layout.predictor.start(predicted)
    layout.learn(0, 0, 0)
    layout.learn(1, window_ns, window_ns)
    return layout


def whole(view: View, dimm: int) -> int:
    return view.topology.placement_index[f"whole@dimm{dimm}"]


def test_the_window_is_a_running_mean_of_the_time_between_layers() -> None:
    layout = layout_of("trimoe")
    layout.learn(0, 100, 200)
    assert layout.window_ns == 0, "nothing was before the first layer"
    layout.learn(1, 700, 900)
    assert layout.window_ns == 500, "the first is taken as it is"
    layout.learn(2, 1900, 2000)
    assert layout.window_ns == pytest.approx(0.9 * 500 + 0.1 * 1000)
    layout.learn(0, 1950, 2100)
    assert layout.window_ns == pytest.approx(0.9 * 550), "no time is less than none"


@pytest.mark.parametrize(
    ("rule", "rest"), [("classes", ["dimm1"] * 4), ("smooth-makespan", ["dram"] * 4)]
)
def test_experts_of_one_dimm_are_moved_apart(rule: str, rest: list[str]) -> None:
    layout = layout_of(f"trimoe:prefetch=false,relayout=false,rule={rule}")
    with_window(layout, [4.0] * 4 + [0.0] * 4)
    view, belief = seen(["dimm0"] * 4 + rest)
    moves = layout.propose(0, view, belief)
    assert moves
    others = {whole(view, dimm) for dimm in (1, 2, 3)}
    for move in moves:
        assert move == Move(1, move.expert, None, True, whole(view, 0), move.destination, True)
        assert move.expert < 4
        assert move.destination in others
    assert len({move.destination for move in moves}) == len(moves), "each to another DIMM"


def test_a_hot_expert_takes_the_place_of_the_coldest() -> None:
    layout = with_window(layout_of("trimoe:relayout=false,rebalance=false"), [HOT] + [1.0] * 7)
    view, belief = seen(["dram"] * EXPERTS, resident=5)
    assert layout.propose(0, view, belief) == (
        Move(1, 0, ExpertId(1, 5), True, IN_DRAM, IN_VRAM, False),
    )


def test_a_localized_expert_comes_from_its_dimm() -> None:
    layout = with_window(layout_of("trimoe:relayout=false,rebalance=false"), [HOT] + [1.0] * 7)
    view, belief = seen(["dimm2"] + ["dram"] * 7, resident=5)
    (move,) = layout.propose(0, view, belief)
    assert (move.expert, move.source, move.destination) == (0, whole(view, 2), IN_VRAM)


@pytest.mark.parametrize("rule", ["classes", "smooth-makespan"])
def test_a_localized_expert_that_became_warm_is_striped(rule: str) -> None:
    """60 tokens: 37 us in the DIMM, 41 over PCIe from it, 34 from stripes."""
    layout = layout_of(f"trimoe:prefetch=false,rebalance=false,rule={rule}")
    with_window(layout, [60.0] + [0.0] * 7)
    view, belief = seen(["dimm3"] + ["dram"] * 7)
    (move,) = layout.propose(0, view, belief)
    assert move == Move(1, 0, None, True, whole(view, 3), IN_DRAM, True)


def test_what_is_under_way_is_left_alone() -> None:
    layout = with_window(layout_of("trimoe:relayout=false,rebalance=false"), [HOT] + [1.0] * 7)
    view, belief = seen(["dram"] * EXPERTS, resident=5)
    coming = replace(view, in_flight=(Flight(1, 0, 1000, IN_VRAM),))
    assert all(move.expert != 0 for move in layout.propose(0, coming, belief))
    elsewhere = replace(view, in_flight=(Flight(2, 0, 1000, IN_VRAM),))
    assert layout.propose(0, elsewhere, belief), "of another layer"


def test_moves_are_for_the_next_layer_that_runs() -> None:
    layout = with_window(layout_of("trimoe:relayout=false,rebalance=false"), [HOT] + [1.0] * 7)
    view, belief = seen(["dram"] * EXPERTS, resident=5)
    assert layout.propose(1, view, belief) == (), "layer 2 has nothing to exchange"
    assert layout.propose(2, view, belief) == (), "nor has layer 0 of the next step"
    assert layout.propose(0, view, belief)


def test_without_a_window_or_a_kind_of_move_nothing_is_proposed() -> None:
    view, belief = seen(["dimm0"] * EXPERTS, resident=5)
    idle = layout_of("trimoe")
    idle.predictor.start(np.full((LAYERS, EXPERTS), 4.0))
    assert idle.propose(0, view, belief) == ()
    nothing = layout_of("trimoe:prefetch=false,relayout=false,rebalance=false")
    assert with_window(nothing, [4.0] * 8).propose(0, view, belief) == ()
    assert with_window(layout_of("trimoe"), [4.0] * 8).propose(0, view, belief)


def test_a_busy_link_leaves_no_time_to_begin_a_move() -> None:
    layout = with_window(layout_of("trimoe:relayout=false,rebalance=false"), [HOT] + [1.0] * 7)
    view, belief = seen(["dram"] * EXPERTS, resident=5)
    pcie = view.topology.lane("pcie")
    for busy_ns, moves in ((999_999, 1), (1_000_000, 0)):
        view.busy_ns[pcie] = busy_ns
        assert len(layout.propose(0, view, belief)) == moves


def test_moves_out_of_a_dimm_follow_each_other_over_its_link() -> None:
    """Each takes 240 us: in a window of 300 two may begin."""
    layout = layout_of("trimoe:prefetch=false,relayout=false")
    with_window(layout, [4.0] * EXPERTS, window_ns=300_000)
    view, belief = seen(["dimm0"] * EXPERTS)
    assert len(layout.propose(0, view, belief)) == 2
    view.busy_ns[view.topology.lane("dimm-link0")] = 100_000
    assert len(layout.propose(0, view, belief)) == 1
    view.busy_ns[view.topology.lane("dimm-link0")] = 300_000
    assert layout.propose(0, view, belief) == ()


def test_predictions_follow_what_is_observed() -> None:
    layout = layout_of("trimoe:alpha=0.5")
    _, belief = seen(["dram"] * EXPERTS)
    loads = np.arange(2 * LAYERS * EXPERTS).reshape(2, LAYERS, EXPERTS) % 30
    layout.initial(Profile(loads, belief), np.zeros((LAYERS, EXPERTS), dtype=np.bool_))
    assert layout.predictor.loads == pytest.approx(loads.mean(axis=0))
    layout.observe(2, np.full(EXPERTS, 10))
    assert layout.predictor.loads[2] == pytest.approx((loads[:, 2].mean(axis=0) + 10) / 2)
    assert layout.predictor.loads[1] == pytest.approx(loads[:, 1].mean(axis=0))


@pytest.mark.parametrize("text", ["offline:copies=2", "offline", "joint:copies=1"])
def test_a_first_layout_is_by_dimm_with_copies_of_the_most_used(text: str) -> None:
    layout = choose(layouts, text).create(layouts, LAYERS, EXPERTS)
    view, belief = seen(["dram"] * EXPERTS)
    loads = np.full((4, LAYERS, EXPERTS), 1)
    loads[:, :, :2] = 30
    resident = np.zeros((LAYERS, EXPERTS), dtype=np.bool_)
    resident[:, 0] = True
    where = layout.initial(Profile(loads, belief), resident)
    dimms = [whole(view, dimm) for dimm in range(4)]
    assert np.isin(where, [IN_DRAM, *dimms]).all()
    assert (where[:, 0] == IN_DRAM).all(), "what is in GPU memory"
    assert np.isin(where, dimms).any(axis=1).all(), "cold ones are localized"
    copies = int(text.partition("=")[2] or 0)
    assert layout.copied.sum(axis=1).tolist() == [copies] * LAYERS
    assert np.isin(where[layout.copied], dimms).all()
