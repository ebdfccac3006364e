"""Small promises of core values that hold at their edges: routes to nowhere, complaints
once."""

from __future__ import annotations

import numpy as np
import pytest

from made_up import view_of
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import violations
from moesaic.core.offloading import CPU, IN_DRAM, IN_VRAM, OFFLOADING
from more_devices import with_four_dimms


def test_there_is_no_route_to_where_an_expert_lies() -> None:
    assert OFFLOADING.route(IN_DRAM, IN_VRAM) is not None
    for topology in (OFFLOADING, with_four_dimms().topology()):
        for placement in range(len(topology.placements)):
            assert topology.route(placement, placement) is None


@pytest.mark.parametrize(("slots", "said"), [(0, "no slots"), (1, "needs 2 of 1 slots")])
def test_a_full_memory_is_complained_about_once(slots: int, said: str) -> None:
    """Three moves, however many of them have no slot."""
    plan = LayerPlan(0, {CPU: (0,)}, (), tuple(Move(1, expert) for expert in range(3)))
    found = list(violations(plan, np.array([1, 0, 0, 0, 0, 0]), view_of([], slots)))
    assert len(found) == 1
    assert said in found[0]
