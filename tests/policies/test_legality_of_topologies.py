"""Are plans for any devices checked? Four DIMMs that compute, and each rule broken once."""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import violations
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.core.view import Flight, View
from more_devices import with_a_dimm, with_four_dimms

TOPOLOGY = with_four_dimms().topology()
STRIPES = TOPOLOGY.placement("striped@dimm0+dimm1+dimm2+dimm3")
D0, D1, D2 = (TOPOLOGY.placement(f"whole@dimm{at}") for at in range(3))
VRAM = TOPOLOGY.placement("whole@vram")

# Layer 0 of 2, eight experts. 0 and 1 lie in stripes, 2 in DIMM 0, 3 on the GPU and in stripes, 4
# is coming to DIMM 1, 5 in stripes and demanded on the GPU; two of layer 1 lie in stripes, one in
# DIMM 0. The CPU reads stripes and every DIMM.
LOADS = np.array([1, 2, 3, 4, 5, 6, 0, 0])
DEMAND = Move(0, 5, source=STRIPES, destination=VRAM)
RELAYOUT = Move(1, 0, source=STRIPES, destination=D2, leaves=True)
LEGAL = LayerPlan(
    0,
    {"gpu": (3, 5), "cpu": (0, 1), "ndp0": (2, 1), "ndp1": (4,)},
    (DEMAND,),
    (RELAYOUT,),
    parts={1: {"cpu": 400, "ndp0": 600}},
)


def view() -> View:
    memory = Residency(TOPOLOGY, 2, 8, [2, 5, 3, 4, 4])
    memory.place([ExpertId(0, e) for e in (0, 1, 3, 5)], STRIPES)
    memory.place([ExpertId(1, e) for e in (0, 1)], STRIPES)
    memory.place([ExpertId(0, 1), ExpertId(0, 2), ExpertId(1, 2)], D0)
    memory.place([ExpertId(0, 3)], VRAM)
    memory.start(Move(0, 4, source=STRIPES, destination=D1))
    return View.of(memory, (Flight(0, 4, 50, D1),), [0] * len(TOPOLOGY.lanes))


def queues(**changes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {**LEGAL.queues, **changes}


BROKEN = {
    "a device that is not there": (queues(ndp7=()), {}, "there is no device 'ndp7'"),
    "from a memory that the device cannot read": (
        queues(ndp0=(1,), ndp1=(4, 2)),
        {},
        "the ndp1 computes expert 2, which is not where it could read it",
    ),
    "stripes are nothing for a DIMM": (
        queues(cpu=(1,), ndp0=(2, 1, 0)),
        {},
        "the ndp0 computes expert 0, which is not where it could read it",
    ),
    "parts that are less than the whole": (
        LEGAL.queues,
        {"parts": {1: {"cpu": 400, "ndp0": 500}}},
        "the parts of expert 1 are {'cpu': 400, 'ndp0': 500}, not 1000 in all",
    ),
    "an empty part": (
        LEGAL.queues,
        {"parts": {1: {"cpu": 1000, "ndp0": 0}}},
        "the parts of expert 1",
    ),
    "a part that no device computes": (
        queues(ndp0=(2,)),
        {},
        "expert 1 has parts for ['cpu', 'ndp0'], but is queued for ['cpu']",
    ),
    "two devices without parts": (LEGAL.queues, {"parts": {}}, "expert 1 is computed 2 times"),
    "no link": (
        LEGAL.queues,
        {"background": (Move(0, 3, source=VRAM, destination=D2),)},
        "is moved from whole@vram to whole@dimm2, without a link",
    ),
    "from where it is not": (
        LEGAL.queues,
        {"background": (RELAYOUT._replace(expert=5),)},
        "is moved from striped@dimm0+dimm1+dimm2+dimm3, where it is not",
    ),
    "to where it is coming": (
        LEGAL.queues,
        {"background": (Move(0, 4, source=STRIPES, destination=D1),)},
        "is moved to whole@dimm1 twice",
    ),
    "a placement that is not there": (
        LEGAL.queues,
        {"background": (RELAYOUT._replace(destination=9),)},
        "between placements that the machine has not got",
    ),
    "the last copy": (
        LEGAL.queues,
        {"background": (RELAYOUT._replace(destination=D0, victim=ExpertId(1, 2)),)},
        "is evicted from whole@dimm0, which has its only copy",
    ),
    "away from under a device": (
        LEGAL.queues,
        {"background": (Move(0, 0, source=STRIPES, destination=D2, leaves=True),)},
        "is evicted from striped@dimm0+dimm1+dimm2+dimm3 though this layer computes it there",
    ),
    "given up and thrown away": (
        LEGAL.queues,
        {"background": (RELAYOUT._replace(keep=False),)},
        "would leave its place and be thrown away",
    ),
    "from under another move": (
        LEGAL.queues,
        {
            "background": (
                Move(1, 1, source=STRIPES, destination=D2),
                Move(1, 2, ExpertId(1, 1), source=D0, destination=STRIPES),
            )
        },
        "is evicted from striped@dimm0+dimm1+dimm2+dimm3 though it is moved from there",
    ),
    "a full memory": (
        LEGAL.queues,
        {"background": (RELAYOUT._replace(destination=D1),)},
        "moving expert 0 needs 3.5 of 3 slots of dimm1",
    ),
}


def test_the_plan_to_be_broken_is_legal() -> None:
    assert list(violations(LEGAL, LOADS, view())) == []


def test_a_home_is_never_left() -> None:
    topology = with_a_dimm().topology()
    memory = Residency(topology, 1, 2, [1, None, 1])
    seen = View.of(memory, (), [0] * len(topology.lanes))
    home, dimm = topology.placement("whole@dram"), topology.placement("whole@dimm")
    move = Move(0, 1, source=home, destination=dimm, leaves=True)
    plan = LayerPlan(0, {"cpu": (0,)}, (), (move,))
    loads = np.array([1, 0])
    (said,) = violations(plan, loads, seen)
    assert said.endswith("is evicted from whole@dram, which holds every expert for ever")
    copied = plan._replace(background=(move._replace(leaves=False),))
    assert not list(violations(copied, loads, seen))


def test_policies_of_offloading_see_what_comes_to_the_accelerator_only() -> None:
    seen = view()
    assert [flight.destination for flight in seen.in_flight] == [D1]
    assert seen.arriving == ()
    assert seen.resident.sum() == 1
    assert (seen.slots, seen.occupied, seen.held.tolist()) == (2, 1, [1, 0])
    assert (seen.occupied, seen.gpu_busy_ns, seen.cpu_busy_ns, seen.pcie_busy_ns) == (1, 0, 0, 0)


@pytest.mark.parametrize(("served", "changes", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_each_broken_rule_is_named(
    served: dict[str, tuple[int, ...]], changes: dict[str, object], complaint: str
) -> None:
    plan = LEGAL._replace(queues=served, **changes)  # type: ignore[arg-type]
    said = list(violations(plan, LOADS, view()))
    assert any(complaint in each for each in said), said
