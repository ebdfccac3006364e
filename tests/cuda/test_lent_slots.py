"""Slots that another executor uses for a while: is what it leaves there known afterwards?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("moesaic.machines.captured._conductor")
pytest.importorskip("moesaic.kernels._native", reason="the native kernels were not built")

from test_device_transfers import EXPERTS, LAYERS, SLOTS, Bench

from moesaic.core.layer_plan import Move
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.machines.captured.captured import Captured
from moesaic.machines.real.executor import Network
from moesaic.machines.real.routing_adapter import RoutingAdapter

pytestmark = pytest.mark.without_native

NATIVE: Any = object()
PLACED = [ExpertId(0, 3), ExpertId(1, 5), ExpertId(1, 9)]


class Steps:
    """Keeps the slots as numbers, as the conductor does, and moves experts itself."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.closed, self.fails = False, False
        self.bytes_moved = 7

    def load_slots(self, numbers: list[int]) -> None:
        if self.fails:
            raise KeyboardInterrupt
        self.loaded = list(numbers)

    def slots(self) -> list[int]:
        return self.loaded

    def move(self, there: ExpertId, gone: ExpertId) -> int:
        at, victim = (each.layer * EXPERTS + each.expert for each in (there, gone))
        self.loaded[at], self.loaded[victim] = self.loaded[victim], -1
        return self.loaded[at]

    def close(self) -> None:
        self.closed = True


def lending() -> tuple[Bench, Captured, Steps]:
    bench, steps = Bench(), Steps()
    bench.ledger.place(PLACED)
    absent: Any = None
    network = Network(absent, absent, bench.ledger._store, RoutingAdapter(1))
    timeline = Timeline(enabled=False)
    captured = Captured(network, absent, bench.ledger, absent, lambda: NATIVE, timeline)
    captured._made = NATIVE, steps  # type: ignore[assignment]
    return bench, captured, steps


def resident(bench: Bench) -> list[ExpertId]:
    return [ExpertId(*map(int, at)) for at in np.argwhere(bench.ledger.residency.resident)]


def test_what_was_moved_meanwhile_is_known_afterwards() -> None:
    bench, captured, steps = lending()
    bench.ledger.offer([Move(0, 8)])  # under way when the slots are lent
    captured.enter()
    assert len(steps.loaded) == LAYERS * EXPERTS
    assert sum(number >= 0 for number in steps.loaded) == len(PLACED) + 1
    slot = steps.move(ExpertId(1, 20), gone=ExpertId(0, 3))
    bench.slots.slab[slot].copy_(bench.ledger._store.block(1, 20))
    captured.leave()
    assert not captured.has_slots
    assert resident(bench) == [ExpertId(0, 8), ExpertId(1, 5), ExpertId(1, 9), ExpertId(1, 20)]
    for at in resident(bench):
        assert torch.equal(bench.slots.block(*at), bench.ledger._store.block(*at))
    bench.run(1, [20, 2], [Move(1, 2, ExpertId(1, 9))])
    assert bench.experts.read == {20: EXPERTS + 20, 2: EXPERTS + 2}
    assert bench.ledger.residency.occupied == SLOTS


def test_entering_and_leaving_twice_is_harmless() -> None:
    bench, captured, _ = lending()
    for _ in range(2):
        captured.enter()
        captured.enter()
        captured.leave()
        captured.leave()
    assert resident(bench) == PLACED


def test_slots_that_could_not_be_taken_are_still_the_ledgers() -> None:
    bench, captured, steps = lending()
    steps.fails = True
    with pytest.raises(KeyboardInterrupt):
        captured.enter()
    assert not captured.has_slots
    bench.run(0, [3], [])
    assert bench.experts.read == {3: 3}


def test_a_lent_ledger_moves_nothing() -> None:
    bench, captured, _ = lending()
    captured.enter()
    with pytest.raises(AssertionError, match="another executor has the slots"):
        bench.ledger.demand([Move(0, 1)])
    captured._give_up()
    assert not captured.has_slots
    assert resident(bench) == PLACED
