"""Is a topology checked, and do its indices, routes and slots follow from what it names?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from made_up import view_of
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import violations
from moesaic.core.offloading import CPU, HOST_ONLY, IN_DRAM, IN_VRAM, OFFLOADING
from moesaic.core.residency import UNLIMITED, Residency
from moesaic.core.routing import ExpertId
from moesaic.core.topology import STRIPED, WHOLE, Device, Hop, Link, Memory, Placement, Topology
from more_devices import with_a_dimm, with_four_dimms

DIMMS = with_four_dimms().topology()
STRIPES, VRAM = DIMMS.placement("striped@dimm0+dimm1+dimm2+dimm3"), DIMMS.placement("whole@vram")
FIRST, SECOND = DIMMS.placement("whole@dimm0"), DIMMS.placement("whole@dimm1")


def test_gpu_cpu_and_link_are_one_topology() -> None:
    assert OFFLOADING.lanes == ("gpu", "cpu", "pcie")
    assert OFFLOADING.placement("whole@vram") == IN_VRAM
    assert OFFLOADING.placement("whole@dram") == IN_DRAM
    assert OFFLOADING.readable.tolist() == [[1, 0], [0, 1]]
    assert OFFLOADING.route(IN_DRAM, IN_VRAM) == (Hop(0, Fraction(1)),)
    assert OFFLOADING.route(IN_VRAM, IN_DRAM) is None, "nothing is copied back"
    assert OFFLOADING.units == 1


def test_devices_come_before_links_and_read_their_own_memory_first() -> None:
    topology = with_a_dimm().topology()
    assert topology.lanes == ("gpu", "cpu", "ndp", "pcie", "dimm-bus")
    names = [[topology.placements[p].name for p in reads] for reads in topology.reads]
    assert names == [["whole@vram"], ["whole@dram", "whole@dimm"], ["whole@dimm"]]
    with pytest.raises(UnknownName, match="unknown device 'dpu'"):
        topology.device("dpu")


def test_a_relayout_uses_the_links_of_every_piece() -> None:
    """Of four stripes one lies in the right memory already."""
    quarter = Fraction(1, 4)
    carried = {DIMMS.links[hop.link].name: hop.share for hop in DIMMS.route(STRIPES, FIRST) or ()}
    assert carried == {f"dimm-link{at}": quarter for at in (1, 2, 3)}
    back = DIMMS.route(FIRST, STRIPES) or ()
    assert [(DIMMS.links[h.link].name, h.share) for h in back] == [("dimm-link0", 3 * quarter)]
    (whole,) = DIMMS.route(SECOND, FIRST) or ()
    assert (DIMMS.links[whole.link].name, whole.share) == ("dimm-link1", Fraction(1))
    (over_pcie,) = DIMMS.route(STRIPES, VRAM) or ()
    assert (DIMMS.links[over_pcie.link].name, over_pcie.share) == ("pcie", Fraction(1))
    assert DIMMS.route(VRAM, FIRST) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"devices": ()}, "at least one device"),
        ({"devices": (Device("gpu", "hbm"),)}, "device 'gpu': there is no memory 'hbm'"),
        ({"devices": (Device("gpu", None, ("whole@x",)),)}, "there is no placement 'whole@x'"),
        ({"devices": (*OFFLOADING.devices, Device("cpu", None))}, "more than one device 'cpu'"),
        ({"devices": (*OFFLOADING.devices, Device("pcie", None))}, "device or link 'pcie'"),
        ({"memories": (*OFFLOADING.memories, Memory("cxl", "dpu"))}, "no device 'dpu'"),
        ({"memories": (*OFFLOADING.memories, Memory("dram"))}, "more than one memory 'dram'"),
        ({"links": (Link("pcie", ("dram",), ("hbm",)),)}, "link 'pcie': there is no memory 'hbm'"),
        ({"placements": (*OFFLOADING.placements, Placement(WHOLE, ("cxl",)))}, "no memory 'cxl'"),
        ({"placements": (*OFFLOADING.placements, Placement(STRIPED, ("dram",)))}, "over several"),
        ({"placements": (*OFFLOADING.placements, Placement(WHOLE, ("vram", "dram")))}, "one mem"),
        ({"placements": (*OFFLOADING.placements, Placement("mirrored", ("dram",)))}, "mirrored"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, tuple[object, ...]], complaint: str) -> None:
    with pytest.raises(ImpossibleSetting, match=complaint):
        replace(OFFLOADING, **changes)  # type: ignore[arg-type]


def residency(topology: Topology, slots: int) -> Residency:
    return Residency(topology, 2, 3, [slots] * len(topology.memories))


def test_a_home_holds_every_expert_and_is_never_full() -> None:
    memory = Residency(OFFLOADING, 2, 3, (1, None))
    assert memory.located[IN_DRAM].all()
    assert not memory.located[IN_VRAM].any()
    assert memory.memory_slots.tolist() == [1, UNLIMITED]
    assert (memory.slots, memory.occupied) == (1, 0)


def test_a_stripe_takes_a_part_of_a_slot_in_each_memory() -> None:
    """Slots are counted in quarters of an expert: a whole one takes four."""
    memory = residency(DIMMS, 1)
    dimms = [DIMMS.memory(f"dimm{at}") for at in range(4)]
    memory.place([ExpertId(0, 0), ExpertId(1, 1)], STRIPES)
    assert memory.memory_occupied[dimms].tolist() == [2, 2, 2, 2]
    assert memory.memory_held[dimms[0]].tolist() == [1, 1]
    with pytest.raises(AssertionError, match="6 of 4 slots of dimm0"):
        memory.place([ExpertId(0, 2)], FIRST)
    assert memory.slots == 1, "of the accelerator's memory, in whole experts"


def test_a_relayout_takes_its_slots_at_once_and_leaves_its_source_on_arrival() -> None:
    memory = residency(DIMMS, 1)
    memory.place([ExpertId(0, 0)], STRIPES)
    move = Move(0, 0, source=STRIPES, destination=SECOND, leaves=True)
    dimms = [DIMMS.memory(f"dimm{at}") for at in range(4)]
    full = residency(DIMMS, 2)
    full.place([ExpertId(0, 0)], STRIPES)
    full.start(move)
    assert full.memory_occupied[dimms].tolist() == [1, 5, 1, 1]
    assert (full.located[STRIPES, 0, 0], full.located[SECOND, 0, 0]) == (1, 0)
    full.complete(move)
    assert full.memory_occupied[dimms].tolist() == [0, 4, 0, 0]
    assert (full.located[STRIPES, 0, 0], full.located[SECOND, 0, 0]) == (0, 1)
    with pytest.raises(AssertionError, match="5 of 4 slots of dimm1"):
        memory.start(move)


def test_a_victim_leaves_the_destination() -> None:
    memory = residency(DIMMS, 1)
    memory.place([ExpertId(0, 0), ExpertId(0, 1)], STRIPES)
    memory.place([ExpertId(0, 1)], VRAM)
    memory.start(Move(0, 0, ExpertId(0, 1), source=STRIPES, destination=VRAM))
    assert memory.located[VRAM].sum() == 0
    assert memory.located[STRIPES, 0].tolist() == [1, 1, 0]
    assert memory.occupied == 1


def test_without_an_accelerator_there_are_no_slots() -> None:
    memory = Residency(HOST_ONLY, 2, 3, (None,))
    assert (memory.slots, memory.occupied, memory.held.tolist()) == (0, 0, [0, 0])
    assert not memory.resident.any()


# Small promises of core values that hold at their edges: routes to nowhere, complaints once.


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
