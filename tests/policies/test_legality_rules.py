"""Is each kind of illegal plan caught? One legal plan, broken once per rule."""

from __future__ import annotations

import numpy as np
import pytest

from made_up import view_of
from moesaic.core.errors import IllegalPlan
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import check, violations
from moesaic.core.offloading import CPU, GPU
from moesaic.core.routing import ExpertId
from moesaic.core.view import Flight

# Layer 1 of 3, six experts, four slots: experts 0 and 1 are there, 2 is under way, 3 is demanded
# in the place of (2, 5), 4 runs on the CPU, 5 is idle. The CPU also computes 0 though it is
# cached, so (2, 0) may take its place in the background.
LOADS = np.array([1, 2, 1, 3, 1, 0])
VIEW = view_of([(1, 0), (1, 1), (2, 5)], slots=4, flight=Flight(1, 2, 50))
DEMAND = Move(1, 3, ExpertId(2, 5))
BACKGROUND = Move(2, 0, ExpertId(1, 0))
LEGAL = LayerPlan(1, {GPU: (1, 2, 3), CPU: (4, 0)}, (DEMAND,), (BACKGROUND,))


def test_the_plan_to_be_broken_is_legal() -> None:
    assert list(violations(LEGAL, LOADS, VIEW)) == []
    check(LEGAL, LOADS, VIEW)


def test_check_raises_with_every_violation() -> None:
    broken = LEGAL._replace(queues={GPU: (1, 2, 3), CPU: (5,)})
    with pytest.raises(IllegalPlan, match=r"expert 0 .*expert 4 .*expert 5") as caught:
        check(broken, LOADS, VIEW)
    assert "layer 1" in str(caught.value)


BROKEN = {
    "an active expert is forgotten": (
        LEGAL._replace(queues={GPU: (1, 2, 3), CPU: (4,)}),
        "expert 0 has 1 tokens and no device",
    ),
    "an idle expert is computed": (
        LEGAL._replace(queues={GPU: (1, 2, 3), CPU: (4, 0, 5)}),
        "expert 5 is computed without tokens",
    ),
    "an expert is computed on two devices": (
        LEGAL._replace(queues={GPU: (1, 2, 3), CPU: (4, 0, 1)}),
        "expert 1 is computed 2 times",
    ),
    "an expert is computed twice on one device": (
        LEGAL._replace(queues={GPU: (1, 2, 3), CPU: (4, 0, 0)}),
        "expert 0 is computed 2 times",
    ),
    "the GPU computes what it does not have": (
        LEGAL._replace(queues={GPU: (1, 2, 3, 4), CPU: (0,)}),
        "the gpu computes expert 4, which is not where it could read it",
    ),
    "a demanded expert is not computed on the GPU": (
        LEGAL._replace(queues={GPU: (1, 2), CPU: (4, 0, 3)}),
        "expert 3 is demanded, but not computed where it is moved to",
    ),
    "a resident expert is moved": (
        LEGAL._replace(background=(Move(2, 5, ExpertId(1, 0)),)),
        "ExpertId(layer=2, expert=5) is moved to whole@vram, where it already is",
    ),
    "an expert under way is moved again": (
        LEGAL._replace(background=(Move(1, 2, ExpertId(1, 0)),)),
        "ExpertId(layer=1, expert=2) is moved to whole@vram twice",
    ),
    "an expert is moved twice by one plan": (
        LEGAL._replace(background=(Move(1, 3, ExpertId(1, 0)),)),
        "ExpertId(layer=1, expert=3) is moved to whole@vram twice",
    ),
    "an absent expert is evicted": (
        LEGAL._replace(background=(Move(2, 0, ExpertId(2, 1)),)),
        "ExpertId(layer=2, expert=1) is evicted from whole@vram, where it is not",
    ),
    "an expert is evicted twice": (
        LEGAL._replace(background=(Move(2, 0, ExpertId(2, 5)),)),
        "ExpertId(layer=2, expert=5) is evicted from whole@vram twice",
    ),
    "an expert in use is evicted": (
        LEGAL._replace(background=(Move(2, 0, ExpertId(1, 1)),)),
        "expert=1) is evicted from whole@vram though this layer computes it there",
    ),
    "a demanded transfer is of another layer": (
        LEGAL._replace(transfers=(DEMAND, Move(0, 3, None, keep=False))),
        "a demanded move belongs to layer 0, not 1",
    ),
    "a background transfer is not kept": (
        LEGAL._replace(background=(Move(2, 0, None, keep=False),)),
        "background move of expert 0 would be thrown away",
    ),
    "memory overflows": (
        LEGAL._replace(background=(Move(2, 0),)),
        "moving expert 0 needs 5 of 4 slots of vram",
    ),
}


@pytest.mark.parametrize(("plan", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_each_broken_rule_is_named(plan: LayerPlan, complaint: str) -> None:
    assert any(complaint in said for said in violations(plan, LOADS, VIEW))


def test_demanded_experts_are_computed_in_the_order_of_their_transfers() -> None:
    view = view_of([], slots=2)
    moves = (Move(1, 3), Move(1, 4))
    loads = np.array([0, 0, 0, 1, 1, 0])
    assert not list(violations(LayerPlan(1, {GPU: (3, 4)}, moves), loads, view))
    said = list(violations(LayerPlan(1, {GPU: (4, 3)}, moves), loads, view))
    assert said == ["the gpu must compute demanded experts in the order of their moves"]


def test_a_machine_without_slots_moves_nothing() -> None:
    plan = LayerPlan(1, {GPU: (3,)}, (Move(1, 3, None, keep=False),))
    said = list(violations(plan, np.array([0, 0, 0, 1, 0, 0]), view_of([], slots=0)))
    assert said == ["there are no slots in vram to move experts into"]
