"""TriMoE's equations 1 to 7, each against numbers worked out by hand (see tri_layers.py)."""

from __future__ import annotations

import numpy as np
import pytest
from tri_layers import round_costs

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.policies.tri.costs import (
    ON_CPU,
    ON_GPU,
    ON_NDP,
    cpu_ns,
    dram_ns,
    gpu_hit_ns,
    gpu_miss_ns,
    ndp_ns,
)
from moesaic.policies.tri.layer import (
    CPU_TIME,
    FIRST_DIMM,
    busy_times,
    layer_of,
    makespan,
    options_of,
)


def test_equation_1_a_resident_expert_costs_its_computation() -> None:
    assert gpu_hit_ns(round_costs(), 6) == 16


@pytest.mark.parametrize(
    ("load", "striped", "changes", "expected"),
    [
        (6, True, {}, 100),  # PCIe
        (6, False, {"pcie_ns": 50}, 80),  # the localized read
        (6, True, {"pcie_ns": 5}, 20),  # the striped read
        (60, True, {"pcie_ns": 50}, 70),  # computation
    ],
)
def test_equation_2_a_miss_costs_its_slowest_part(
    load: int, striped: bool, changes: dict[str, float], expected: float
) -> None:
    assert gpu_miss_ns(round_costs(**changes), load, striped, 1) == expected


def test_equation_3_the_cpu_reads_or_computes() -> None:
    costs = round_costs()
    assert cpu_ns(costs, 3, True, 1) == 20
    assert cpu_ns(costs, 3, False, 1) == 80
    assert cpu_ns(costs, 20, False, 1) == 100


def test_equation_4_a_dimm_reads_or_computes() -> None:
    costs = round_costs(internal_ns=50)
    assert ndp_ns(costs, 1, 1) == 50
    assert ndp_ns(costs, 2, 1) == 80


def test_a_split_expert_is_read_by_more_channels_and_computed_by_more_units() -> None:
    costs = round_costs(gather_ns=3)
    assert dram_ns(costs, False, 2) == 40  # two channels, half each
    assert dram_ns(costs, False, 4) == 40  # two DIMMs on each
    assert ndp_ns(costs, 4, 2) == 80 + 12


def test_equation_5_gpu_and_cpu_add_up() -> None:
    costs = round_costs(contention="none")
    layer = layer_of(costs, np.array([6, 6, 3, 20]), resident=np.array([True, False, False, False]))
    busy = busy_times(options_of(costs, layer), np.array([ON_GPU, ON_GPU, ON_CPU, ON_CPU]))
    assert busy.tolist() == [16 + 100, 20 + 100, 100, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("contention", "expected"),
    # Expert 0 runs in DIMM 0 (80), 1 in DIMM 1 (40); the CPU reads 2 (striped) and 3 (DIMM 1).
    [("none", [80, 40, 0, 0]), ("own-share", [90, 130, 10, 10]), ("full", [100, 140, 20, 20])],
)
def test_equation_6_a_dimm_is_busy_with_its_experts_and_with_host_reads(
    contention: str, expected: list[float]
) -> None:
    costs = round_costs(contention=contention)
    layer = layer_of(costs, np.array([2, 1, 1, 1]), dimm=np.array([0, 1, -1, 1]))
    busy = busy_times(options_of(costs, layer), np.array([ON_NDP, ON_NDP, ON_CPU, ON_CPU]))
    assert busy[3:7].tolist() == expected
    assert busy[1] == 20 + 80


def test_equation_7_the_slowest_domain_decides() -> None:
    costs = round_costs()
    layer = layer_of(costs, np.array([6, 3, 4]), resident=np.array([True, False, False]),
                     dimm=np.array([-1, -1, 2]))  # fmt: skip
    options = options_of(costs, layer)
    assert makespan(options, np.array([ON_GPU, ON_CPU, ON_NDP])) == 160 + 10
    assert makespan(options, np.array([ON_GPU, ON_CPU, ON_CPU])) == 20 + 80


def test_what_is_busy_already_counts() -> None:
    costs = round_costs()
    base = np.zeros(9)
    base[0] = 1000.0
    layer = layer_of(costs, np.array([6]), resident=np.array([True]), base=base)
    assert makespan(options_of(costs, layer), np.array([ON_GPU])) == 1016


def test_shared_host_bandwidth_makes_channels_a_resource() -> None:
    """Both read striped: each channel is busy for both; a localized read for one of them only. The
    CPU has its own 20 and 80, and waits for the GPU's 20."""
    costs = round_costs(shared=True)
    layer = layer_of(costs, np.array([6, 3, 1]), dimm=np.array([-1, -1, 3]))
    busy = busy_times(options_of(costs, layer), np.array([ON_GPU, ON_CPU, ON_CPU]))
    assert busy[7:].tolist() == [40, 40 + 80]
    assert busy[1] == 20 + 80 + 20
    apart = busy_times(options_of(round_costs(), layer), np.array([ON_GPU, ON_CPU, ON_CPU]))
    assert apart[7:].tolist() == [0, 0]
    assert apart[1] == 20 + 80


def test_pipelined_loads_hide_behind_computation() -> None:
    costs = round_costs(pipelined=True)
    layer = layer_of(costs, np.array([50, 6]), resident=np.array([True, False]))
    busy = busy_times(options_of(costs, layer), np.array([ON_GPU, ON_GPU]))
    assert busy[:3].tolist() == [60 + 16, 0, 100]


def test_an_expert_runs_only_where_it_lies() -> None:
    costs = round_costs()
    layer = layer_of(costs, np.array([2, 2]), dimm=np.array([1, -1]))
    options = options_of(costs, layer)
    assert np.isinf(options.time).tolist() == [[False, False, False], [False, False, True]]
    assert np.flatnonzero(options.use[0, ON_NDP]).tolist() == [3 + 1]


def test_impossible_machines_are_refused() -> None:
    with pytest.raises(UnknownName, match="contention"):
        round_costs(contention="half")
    with pytest.raises(ImpossibleSetting, match="4 DIMMs on 3 channels"):
        round_costs(channels=3)
    with pytest.raises(ImpossibleSetting, match="positive"):
        round_costs(pcie_ns=-1)


def test_a_cpu_slower_than_its_channels_occupies_them_for_their_own_time() -> None:
    """Stripes take the CPU 20, each of the two channels 8, and each DIMM half of that."""
    costs = round_costs(channel_ns=8, shared=True)
    assert (dram_ns(costs, True, 1), cpu_ns(costs, 1, True, 1)) == (8, 20)
    assert costs.striped_busy_ns == 4
    use = options_of(costs, layer_of(costs, np.array([1]))).use[0, ON_CPU]
    assert use[CPU_TIME] == 20
    assert use[FIRST_DIMM : FIRST_DIMM + 4].tolist() == [4] * 4
    assert use[FIRST_DIMM + 4 :].tolist() == [8, 8]


def test_a_split_experts_read_is_divided_over_its_dimms_and_their_channels() -> None:
    costs = round_costs(shared=True)
    layer = layer_of(costs, np.array([1]), dimm=np.array([2]), span=np.array([2]))
    use = options_of(costs, layer).use[0, ON_CPU]
    assert use[FIRST_DIMM : FIRST_DIMM + 4].tolist() == [0, 0, 40, 40]
    assert use[FIRST_DIMM + 4 :].tolist() == [40, 40]


def test_a_measured_part_costs_what_was_measured() -> None:
    """A fourth row of the table is a unit's part of a split expert, activations included."""
    costs = round_costs()
    costs = costs._replace(compute=np.vstack([costs.compute, 25 * np.arange(65.0)]))
    assert (ndp_ns(costs, 4, 1), ndp_ns(costs, 4, 2)) == (160, 100)


@pytest.mark.parametrize(("dimm", "span", "possible"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_only_dimms_with_a_unit_compute(dimm: int, span: int, possible: bool) -> None:
    """The first two of four have one, and every part of a split expert needs one."""
    costs = round_costs(units=2)
    layer = layer_of(costs, np.array([1]), dimm=np.array([dimm]), span=np.array([span]))
    assert np.isfinite(options_of(costs, layer).time[0, ON_NDP]) == possible
