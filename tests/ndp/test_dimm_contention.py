"""Do host reads and units on the same DIMM disturb each other as the contention rule says?

A unit needs 6,134 ns for its first expert and one token: 3 us to wake it, 1 us of
overhead, 2,001 ns of reading and activation, 133 ns on the channel."""

from __future__ import annotations

from typing import Any

import pytest

from dimm_machines import STRIPED, dimm_machine
from made_up import routing_of, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import check
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.hardware.dimms import CONTENTION
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.what_if import changed
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model

MODEL = small_model(layers=2, experts=8, top_k=8)
NEAR = 6134


def machine_of(spec: MachineSpec, localized: dict[int, int]) -> SimMachine:
    """`localized`: experts of layer 0 and the DIMM that each lies in; all others are striped."""
    machine = SimMachine(Physics(spec, MODEL), 4, Timeline())
    for expert, dimm in localized.items():
        machine.memory.place([ExpertId(0, expert)], machine.topology.placement(f"whole@dimm{dimm}"))
    machine.fill_main_memory()
    return machine


def ends(machine: SimMachine, plan: LayerPlan) -> dict[tuple[str, int], int]:
    """When every expert and move of the plan ended, from its start."""
    experts = sorted({e for queue in plan.queues.values() for e in queue})
    routing = routing_of(0, [experts])
    machine.begin(Step.decode(1), lambda _: routing)
    machine.route(0)
    check(plan, routing.loads(MODEL.num_experts), machine.view(0))
    start = machine.clock.now
    spans = len(machine.timeline.spans)
    machine.run(plan)
    machine.clock.advance(1_000_000)
    found = list(machine.timeline.spans)[spans:]
    return {(s.lane, s.expert): s.end_ns - start for s in found if s.kind != "dense"}


@pytest.mark.parametrize(
    ("rule", "ns"),
    [("own-share", NEAR + 5000), ("full", NEAR + 10_000), ("none", NEAR)],
)
def test_a_striped_read_by_the_cpu(rule: str, ns: int) -> None:
    """10 us, of which a DIMM sends for 5 us; equation 6 adds up."""
    machine = machine_of(dimm_machine(contention=rule), {0: 0})
    found = ends(machine, LayerPlan(0, {"ndp0": (0,), "cpu": (1,)}))
    assert found["cpu", 1] == 10_000, "the host is not delayed"
    assert found["ndp0", 0] == pytest.approx(ns, abs=2)


@pytest.mark.parametrize(("rule", "ns"), [("own-share", 20_000), ("full", 20_000), ("none", 0)])
def test_a_localized_read_by_the_cpu_occupies_its_dimm_alone(rule: str, ns: int) -> None:
    machine = machine_of(dimm_machine(contention=rule), {0: 0, 1: 1, 2: 0})
    found = ends(machine, LayerPlan(0, {"ndp0": (0,), "ndp1": (1,), "cpu": (2,)}))
    assert found["cpu", 2] == 20_000, "at the speed of one channel"
    assert found["ndp0", 0] == pytest.approx(ns + NEAR, abs=2)
    assert found["ndp1", 1] == NEAR


@pytest.mark.parametrize(("rule", "ns"), [("own-share", NEAR * 6 / 5), ("full", NEAR * 3 / 2)])
def test_a_striped_load_over_pcie_takes_longer_but_no_more_of_a_dimm(rule: str, ns: float) -> None:
    """30 us over PCIe, in which DRAM is read for 10 us and each DIMM sends for 5 us."""
    machine = machine_of(dimm_machine(contention=rule), {0: 0})
    found = ends(machine, LayerPlan(0, {"ndp0": (0,), "gpu": (1,)}, (Move(0, 1),)))
    assert found["pcie", 1] == 30_000
    assert found["ndp0", 0] == pytest.approx(ns, abs=2)


def test_what_the_host_reads_next_occupies_other_dimms() -> None:
    """Unit 1 works for 21,804 ns. For 20 us the CPU reads in DIMM 0, then from stripes: the last
    1,804 ns take twice as long."""
    near = dict.fromkeys(range(2, 8), 1)
    machine = machine_of(dimm_machine(), {0: 0, **near})
    found = ends(machine, LayerPlan(0, {"cpu": (0, 1), "ndp1": tuple(near)}))
    assert found["cpu", 1] == 30_000
    assert found["ndp1", 7] == pytest.approx(20_000 + 2 * (NEAR + 5 * 3134 - 20_000), abs=3)


def test_a_unit_goes_on_where_the_host_has_finished() -> None:
    """Two tokens' worth of experts after one striped read: only the first 10 us are shared."""
    machine = machine_of(dimm_machine(), {0: 0, 3: 0})
    found = ends(machine, LayerPlan(0, {"ndp0": (0, 3), "cpu": (1,)}))
    assert found["ndp0", 3] == pytest.approx(NEAR + 3134 + 5000, abs=3)


@pytest.mark.parametrize("rule", ["own-share", "none"])
@pytest.mark.parametrize(
    ("source", "ns"), [(STRIPED, 10_000), ("whole@dimm2", 20_000)], ids=["striped", "localized"]
)
def test_a_fast_pcie_is_as_slow_as_the_channels_that_feed_it(
    source: str, ns: int, rule: str
) -> None:
    """Whatever is said of DIMMs: it is the channel's wires that limit it."""
    machine = machine_of(dimm_machine(pcie_gb_s=60.0, contention=rule), {0: 2})
    at = machine.topology.placement(source)
    expert = 0 if source == "whole@dimm2" else 1
    found = ends(machine, LayerPlan(0, {"gpu": (expert,)}, (Move(0, expert, source=at),)))
    assert found["pcie", expert] == ns
    assert machine.probe_move(source, "whole@vram") == ns


@pytest.mark.parametrize(
    ("sharing", "cpu", "pcie"),
    [
        ("pcie-first", 30_000, 30_000),  # 20 us at two thirds
        ("proportional", 26_667, 36_667),  # both at three quarters, until the CPU has ended
        ("none", 20_000, 30_000),
    ],
)
def test_cpu_and_pcie_share_the_channels(sharing: str, cpu: int, pcie: int) -> None:
    """The CPU takes all of both channels for 20 us, PCIe a third of them for 30 us."""
    machine = machine_of(dimm_machine(sharing=sharing), {})
    found = ends(machine, LayerPlan(0, {"cpu": (0, 2), "gpu": (1,)}, (Move(0, 1),)))
    assert found["cpu", 2] == pytest.approx(cpu, abs=2)
    assert found["pcie", 1] == pytest.approx(pcie, abs=2)


@pytest.mark.parametrize("rule", CONTENTION)
@pytest.mark.parametrize("copied", ["striped", "localized"])
def test_unshared_reads_do_not_slow_each_other_on_dimms_either(rule: str, copied: str) -> None:
    """TriMoE's machine: the CPU has all channels for a stripe read, PCIe has them again, or all of
    one channel; a read takes its bytes over its rate under every rule, equations 2 and 3."""
    spec = changed(
        load_machine("trimoe-paper"), {"dimms.sharing": "none", "dimms.contention": rule}
    )
    physics = Physics(spec, load_model("qwen3-235b-a22b"))
    machine = SimMachine(physics, 4, Timeline())
    if copied == "localized":
        machine.memory.place([ExpertId(0, 0)], machine.topology.placement("whole@dimm3"))
    machine.fill_main_memory()
    at = int(machine.memory.located[:, 0, 0].argmax())
    alone = ends(machine, LayerPlan(0, {"cpu": (1, 2)}))["cpu", 2]
    beside = ends(machine, LayerPlan(0, {"cpu": (1, 2), "gpu": (0,)}, (Move(0, 0, source=at),)))
    rate = {"striped": 64.0, "localized": 38.4 * 0.916}[copied]
    each = physics.expert_bytes / (307.2 * 0.916) + 10_000  # 144 us
    assert alone == pytest.approx(2 * each + 65_000, abs=2)
    assert beside["cpu", 2] == alone
    assert beside["pcie", 0] == pytest.approx(physics.expert_bytes / rate + 2_900, abs=2)


@pytest.mark.parametrize("sharing", ["pcie-first", "none"])
@pytest.mark.parametrize(("rule", "own"), [("own-share", 5_000), ("full", 10_000)])
def test_a_units_work_and_all_host_reads_add_up(rule: str, own: int, sharing: str) -> None:
    """Equation 6, whatever waits on the channels: the CPU reads a stripe while PCIe copies
    one, and both occupy the unit's DIMM for as long as each does alone."""
    near = (0, 3, 4, 5, 6, 7)
    spec = dimm_machine(contention=rule, sharing=sharing)
    machine = machine_of(spec, dict.fromkeys(near, 0))
    queues = {"ndp0": near, "cpu": (1,), "gpu": (2,)}
    found = ends(machine, LayerPlan(0, queues, (Move(0, 2),)))
    assert found["ndp0", 7] == pytest.approx(NEAR + 5 * 3134 + 2 * own, abs=6)


def test_localized_reads_of_different_channels_do_not_meet() -> None:
    """DIMMs 0 and 1 are on different channels, 0 and 2 on one."""
    for dimm, cpu in ((1, 20_000), (2, 40_000)):
        spec = dimm_machine(pcie_gb_s=60.0, sharing="pcie-first")
        machine = machine_of(spec, {0: 0, 1: dimm})
        at = machine.topology.placement("whole@dimm0")
        found = ends(machine, LayerPlan(0, {"gpu": (0,), "cpu": (1,)}, (Move(0, 0, source=at),)))
        assert found["pcie", 0] == 20_000
        assert found["cpu", 1] == pytest.approx(cpu, abs=2)


def test_activations_take_their_part_of_the_channel() -> None:
    """133 of 6,134 ns on channel 0: the CPU, which wants all of it, has the rest of the whole."""
    settings: dict[str, Any] = {"sharing": "proportional", "contention": "none"}
    machine = machine_of(dimm_machine(**settings), {0: 0})
    found = ends(machine, LayerPlan(0, {"ndp0": (0,), "cpu": (1,)}))
    slowed = 1 + (400 / 3) / NEAR
    assert found["ndp0", 0] == pytest.approx(NEAR * slowed, abs=2)
    assert found["cpu", 1] == pytest.approx(10_000 + 400 / 3, abs=2)


def test_a_cpu_that_waits_for_a_channel_does_not_delay_units_on_it() -> None:
    """The CPU has two thirds of its channel beside a copy; a unit's activations need 2 % of it."""
    machine = machine_of(dimm_machine(sharing="pcie-first", contention="none"), {0: 0})
    found = ends(machine, LayerPlan(0, {"ndp0": (0,), "cpu": (1,), "gpu": (2,)}, (Move(0, 2),)))
    assert found["ndp0", 0] == NEAR
    assert found["pcie", 2] == 30_000
    assert found["cpu", 1] == pytest.approx(15_000 + 3 / 2 * 400 / 3, abs=2)


def test_units_of_different_dimms_work_in_parallel() -> None:
    machine = machine_of(dimm_machine(), {at: at for at in range(4)})
    queues = {f"ndp{at}": (at,) for at in range(4)}
    found = ends(machine, LayerPlan(0, queues))
    assert set(found.values()) == {NEAR}
