"""Parts of the three-device policies, each by hand: costs, options, cuts, predictions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tri_layers import drawn_layer, round_costs

from made_up import small_machine, small_model
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import warm_up
from moesaic.policies.costs import Costs
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP, TriCosts, tri_costs
from moesaic.policies.tri.layer import (
    ALL_DEVICES,
    CPU_TIME,
    FIRST_DIMM,
    GPU_TIME,
    NO_DIMM,
    PCIE_TIME,
    Layer,
    Options,
    Places,
    num_resources,
    options_of,
)
from moesaic.policies.tri.layout import _cut, expected_times, offline_layout
from moesaic.policies.tri.machine import DimmIndices, believed_costs, places_of
from moesaic.policies.tri.predictor import LoadPredictor
from moesaic.reproductions.trimoe.sec55 import class_accuracy
from more_devices import with_dimms


def test_machines_at_the_limits_are_possible() -> None:
    assert round_costs(channels=1).striped_busy_ns == 20 / 4
    assert round_costs(dimms=1, channels=1).units == 1
    assert [round_costs(units=units).units for units in (None, 0, 4)] == [4, 0, 4]
    for units in (-1, 5):
        with pytest.raises(ImpossibleSetting, match=f"{units} of 4 DIMMs compute"):
            round_costs(units=units)
    for wrong in ({"dimms": 0, "channels": 1}, {"channels": 0}, {"internal_ns": 0}):
        with pytest.raises(ImpossibleSetting):
            round_costs(**wrong)


def test_tables_of_whole_numbers_are_costs_too() -> None:
    costs = tri_costs(
        np.ones((3, 4), dtype=np.int64), pcie_ns=1, striped_ns=1, localized_ns=1, internal_ns=1,
        dimms=2, channels=2,
    )  # fmt: skip
    assert costs.compute.dtype == np.float64, "compiled code takes no other"
    assert costs.tokens == 3


@pytest.mark.parametrize("mask", list(product([False, True], repeat=3)))
def test_devices_that_a_system_has_not_serve_nothing(mask: tuple[bool, bool, bool]) -> None:
    costs = round_costs(shared=True)
    layer = drawn_layer(np.random.default_rng(3), costs, 30)
    every, some = options_of(costs, layer), options_of(costs, layer, np.array(mask))
    for option, allowed in zip((ON_GPU, ON_CPU, ON_NDP), mask, strict=True):
        if allowed:
            assert (some.time[:, option] == every.time[:, option]).all()
            assert (some.use[:, option] == every.use[:, option]).all()
        else:
            assert np.isinf(some.time[:, option]).all()
            assert not some.use[:, option].any()


def options_at(costs: TriCosts, resident: bool, striped: bool, dimm: int, span: int) -> Options:
    where = np.array([dimm])
    placed = np.array([resident]), np.array([striped]), where, np.array([span])
    return options_of(costs, Layer(np.array([2]), *placed, np.zeros(num_resources(costs))))


def test_an_expert_in_gpu_memory_alone_runs_there() -> None:
    only = options_at(round_costs(), resident=True, striped=False, dimm=NO_DIMM, span=1)
    assert np.isfinite(only.time[0]).tolist() == [True, False, False]
    assert np.flatnonzero(only.use[0, ON_GPU]).tolist() == [GPU_TIME]


def test_a_split_expert_occupies_its_own_dimms_and_their_channels() -> None:
    """In DIMMs 2 and 3, on channels 0 and 1: 40 of the read from each, 40 of computing in each."""
    split = options_at(round_costs(shared=True), resident=False, striped=False, dimm=2, span=2)
    first = FIRST_DIMM + 4
    assert split.use[0, ON_NDP, FIRST_DIMM:first].tolist() == [0, 0, 40, 40]
    assert split.use[0, ON_CPU, FIRST_DIMM:first].tolist() == [0, 0, 40, 40]
    assert split.use[0, ON_CPU, first:].tolist() == [40, 40]
    assert split.use[0, ON_GPU, [CPU_TIME, PCIE_TIME]].tolist() == [40, 100]


@pytest.mark.parametrize(("dimm", "span", "able"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_only_dimms_with_a_unit_compute(dimm: int, span: int, able: bool) -> None:
    found = options_at(round_costs(units=2), False, False, dimm, span)
    assert np.isfinite(found.time[0]).tolist() == [True, True, able]


def test_expected_times_count_steps_without_tokens() -> None:
    """Loads 2 and 0, 0 and 1: each is active in one of two steps."""
    mean = expected_times(round_costs(), np.array([[2, 0], [0, 1]]))
    assert mean[ON_GPU].tolist() == [12 / 2, 11 / 2]
    assert mean[ON_CPU].tolist() == [20 / 2, 20 / 2], "the striped read"
    assert mean[ON_NDP].tolist() == [80 / 2, 40 / 2]


def slow_cut(
    costs: TriCosts, mean: np.ndarray, activity: np.ndarray, rest: np.ndarray, gpu: float, cpu: bool
) -> int:
    """Every cut by itself. Misses go to GPU and CPU so that both end together."""
    ends = []
    for cut in range(len(rest) + 1):
        striped, local = rest[:cut], rest[cut:]
        near = sum(mean[ON_NDP, e] for e in local) / costs.units
        dimm = near + costs.striped_busy_ns * sum(activity[e] for e in striped)
        miss = costs.pcie_ns * sum(activity[e] for e in striped)
        on_cpu = sum(mean[ON_CPU, e] for e in striped) if cpu else np.inf
        if cpu and on_cpu <= gpu:
            host = on_cpu  # all of it on the CPU, which still ends first
        elif cpu:
            share = (on_cpu - gpu) / (on_cpu + miss)  # of the misses that the GPU loads
            host = gpu + share * miss
        else:
            host = gpu + miss
        ends.append(max(host, dimm))
    return int(np.argmin(ends))


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_the_cut_ends_earliest_of_all(seed: int, cpu: bool) -> None:
    rng = np.random.default_rng(seed)
    costs = round_costs(units=(4, 2)[seed % 2])
    loads = np.minimum(rng.poisson(rng.lognormal(0.3, 1.2, 20), (6, 20)), 64)
    mean, activity = expected_times(costs, loads), (loads > 0).mean(axis=0)
    rest, gpu = np.argsort(-loads.sum(axis=0), kind="stable")[3:], (0.0, 150.0)[seed // 5]
    devices = np.array([True, cpu, True])
    assert _cut(costs, mean, activity, rest, gpu, devices) == slow_cut(
        costs, mean, activity, rest, gpu, cpu
    )


@pytest.mark.parametrize("changes", [{"units": 0}, {}])
def test_without_units_everything_is_striped(changes: dict[str, int]) -> None:
    devices = ALL_DEVICES if changes else np.array([True, True, False])
    layout = offline_layout(round_costs(**changes), np.ones((2, 6), dtype=np.int64), 2, devices)
    assert layout.striped.all()
    assert (layout.dimm == NO_DIMM).all()


def test_what_is_in_gpu_memory_may_be_stated() -> None:
    held = np.array([False, True, False, False])
    layout = offline_layout(round_costs(), np.array([[9, 1, 1, 1]]), held)
    assert layout.resident.tolist() == held.tolist()
    assert layout.striped[1], "its copy lies where a missed one's would"


def test_a_layouts_problem_has_the_experts_in_use() -> None:
    layout = Places(
        np.array([True, False, False]), np.array([True, True, False]), np.array([-1, -1, 2]),
        np.array([1, 1, 2]),
    )  # fmt: skip
    used, problem = layout.active(round_costs(), np.array([5, 0, 7]))
    assert used.tolist() == [0, 2]
    fields = [array.tolist() for array in problem[:5]]
    assert fields == [[5, 7], [True, False], [True, False], [-1, 2], [1, 2]]
    assert problem.base.tolist() == [0.0] * 9
    copy = layout.copy()
    assert all((a == b).all() and a is not b for a, b in zip(copy, layout, strict=True))


def test_predictions_start_from_a_profile_and_may_forget_everything() -> None:
    predictor = LoadPredictor(2, 2, alpha=1.0)
    predictor.start(np.array([[1.0, 2], [3, 4]]))
    predictor.observe(1, np.array([10, 0]))
    assert predictor.loads.tolist() == [[1, 2], [10, 0]]
    halves = LoadPredictor(1, 1, alpha=0.5)
    halves.start(np.array([[4.0]]))
    halves.observe(0, np.array([0]))
    assert halves.loads.tolist() == [[2.0]]
    with pytest.raises(ImpossibleSetting):
        LoadPredictor(1, 1, alpha=1.01)
    assert class_accuracy(np.ones(3), np.ones(3), 0, 0) == 1.0, "nothing was predicted"


# Machines with DIMMs, and without, as the makespan model of three devices sees them.

MODEL = small_model(layers=2, experts=5, top_k=2)


def simulated(machine: MachineSpec) -> tuple[SimMachine, Costs]:
    made = SimMachine(Physics(machine, MODEL), 2)
    costs = warm_up(made, 8, made.topology).costs
    assert costs is not None
    return made, costs


def partly_computing(units: int) -> MachineSpec:
    """Four DIMMs of which the first so many compute."""
    machine = with_dimms(4)
    names = [f"dimm{number}" for number in range(units, 4)]
    memories = {
        name: replace(memory, owner="" if name in names else memory.owner)
        for name, memory in machine.memories.items()
    }
    devices = {f"ndp{number}": machine.devices[f"ndp{number}"] for number in range(units)}
    return replace(machine, memories=memories, devices=devices)


@pytest.mark.parametrize("units", [1, 3, 4])
def test_only_dimms_of_a_device_have_a_unit(units: int) -> None:
    _, costs = simulated(partly_computing(units))
    dimms = DimmIndices.of(costs.topology)
    assert dimms.count == 4
    assert dimms.units == tuple(f"ndp{number}" for number in range(units))
    assert believed_costs(costs).units == units


@pytest.mark.parametrize(("reads_gb_s", "channels"), [(1.5, 4), (3.0, 2), (12.0, 1)])
def test_channels_are_how_much_faster_stripes_are_read(reads_gb_s: float, channels: int) -> None:
    """Stripes take 11 us, one DIMM 41, 21 or 6: never less than stripes."""
    machine = with_dimms(4)
    slow = dict.fromkeys(machine.cpu.reads_gb_s, reads_gb_s)
    _, costs = simulated(replace(machine, cpu=replace(machine.cpu, reads_gb_s=slow)))
    tri = believed_costs(costs)
    assert tri.channels == channels
    assert tri.striped_ns == 11_000
    assert tri.localized_ns == {1.5: 41_000, 3.0: 21_000, 12.0: 11_000}[reads_gb_s]


def test_the_rules_that_were_asked_for_are_in_the_costs() -> None:
    _, costs = simulated(with_dimms(4))
    usual = believed_costs(costs)
    assert (usual.shared, usual.pipelined) == (True, False)
    assert usual.striped_busy_ns == 11_000
    other = believed_costs(costs, contention="none", shared=False, pipelined=True)
    assert (other.shared, other.pipelined, other.striped_busy_ns) == (False, True, 0)
    assert other.pcie_ns == usual.pcie_ns == 34_000


def test_main_memory_of_one_piece_is_one_dimm_that_computes_nothing() -> None:
    _, costs = simulated(small_machine())
    assert DimmIndices.of(costs.topology) == DimmIndices((), (), ())
    for pipelined in (False, True):
        tri = believed_costs(costs, pipelined=pipelined)
        assert (tri.dimms, tri.channels, tri.units) == (1, 1, 0)
        assert (tri.shared, tri.pipelined) == (False, pipelined)
        assert tri.striped_ns == tri.localized_ns == tri.internal_ns == tri.compute[1, 1]
        assert (tri.striped_busy_ns, tri.localized_busy_ns) == (0, 0)
        assert np.isinf(tri.compute[2]).all()
        assert tri.pcie_ns == costs.move_ns[0]


def test_experts_are_found_in_their_memories() -> None:
    machine, costs = simulated(with_dimms(4))
    whole = machine.topology.placement_index["whole@dimm2"]
    machine.memory.place([ExpertId(1, 0), ExpertId(1, 1)], IN_DRAM)
    machine.memory.place([ExpertId(1, 2), ExpertId(1, 3)], whole)
    machine.memory.place([ExpertId(1, 1), ExpertId(1, 3)], IN_VRAM)
    found = places_of(machine.view(1), DimmIndices.of(costs.topology), 1)
    assert found.resident.tolist() == [False, True, False, True, False]
    assert found.striped[:4].tolist() == [True, True, False, False]
    assert found.dimm[:4].tolist() == [NO_DIMM, NO_DIMM, 2, 2]


def test_without_dimms_no_expert_is_in_one() -> None:
    machine, costs = simulated(small_machine())
    found = places_of(machine.view(0), DimmIndices.of(costs.topology), 0)
    assert found.dimm.tolist() == [NO_DIMM] * 5
    assert found.striped.all()
