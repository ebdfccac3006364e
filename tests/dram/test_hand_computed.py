"""Do small patterns take the cycles that a person computes?"""

from __future__ import annotations

import numpy as np
import pytest
from ddr_rules import commands_of

from moesaic.core.errors import ImpossibleSetting
from moesaic.machines.sim.dram.pattern import BadPattern, Pattern, pattern
from moesaic.machines.sim.dram.result import DramResult
from moesaic.machines.sim.dram.simulate import command_trace, simulate
from moesaic.machines.sim.dram.timing_file import load_timing

TIMING = load_timing("ddr5-4800-trimoe")


def requests(*addresses: str, write: bool = False) -> Pattern:
    """Each `rank bg bank row`."""
    parts = np.array([list(map(int, each.split())) for each in addresses])
    names = ("rank", "bg", "bank", "row")
    return pattern(TIMING.geometry, write=write, **dict(zip(names, parts.T, strict=True)))


def served(made: Pattern, in_flight: int = 32, refresh: bool = False) -> DramResult:
    return simulate(TIMING, made, in_flight, refresh=refresh)


def test_one_read_of_a_closed_bank() -> None:
    """ACT 1, RD 1 + 34, data 40 later, 8 cycles of them."""
    result = served(requests("0 0 0 5"))
    assert result.cycles == 1 + 34 + 40 + 8
    assert result.latency_nck == 83
    assert result.hit_rate == 0
    assert result.bandwidth_gb_s == pytest.approx(64 / 83 * 2.4)


def test_one_write_of_a_closed_bank() -> None:
    assert served(requests("0 0 0 5", write=True)).cycles == 1 + 34 + 38 + 8


def test_a_hit_follows_by_the_long_gap() -> None:
    result = served(requests("0 0 0 5", "0 0 0 5"))
    assert result.cycles == 83 + 12
    assert result.latency_nck == (83 + 95) / 2
    assert result.hit_rate == 0.5


def test_one_in_flight_waits_for_the_data() -> None:
    """The second arrives at 83; RD at 84, data at 84 + 48."""
    result = served(requests("0 0 0 5", "0 0 0 5"), in_flight=1)
    assert result.cycles == 84 + 48
    assert result.latency_nck == (83 + 49) / 2


def test_a_conflict_closes_and_opens() -> None:
    """Arrives at 83: PRE 84 (nRAS ended at 78), ACT 118, RD 152, data 200."""
    assert served(requests("0 0 0 5", "0 0 0 6"), in_flight=1).cycles == 200


def test_a_conflict_in_the_queue_waits_for_nras() -> None:
    """PRE at 1 + nRAS = 78, ACT 112, RD 146, data 194."""
    assert served(requests("0 0 0 5", "0 0 0 6")).cycles == 194


def test_a_younger_hit_comes_before_an_older_conflict() -> None:
    _, trace = command_trace(TIMING, requests("0 0 0 5", "0 0 0 6", "0 0 0 5"), refresh=False)
    order = [(c.name, c.cycle, c.request) for c in commands_of(trace, TIMING)]
    assert order == [
        ("ACT", 1, 0), ("RD", 35, 0), ("RD", 47, 2), ("PRE", 78, 1), ("ACT", 112, 1), ("RD", 146, 1)
    ]  # fmt: skip


def test_two_bank_groups_share_bus_and_rank() -> None:
    """ACTs 8 apart, so RDs 35 and 43."""
    assert served(requests("0 0 0 5", "0 1 0 5")).cycles == 43 + 48


def test_one_bank_group_needs_the_long_gaps() -> None:
    assert served(requests("0 0 0 5", "0 0 1 5")).cycles == 47 + 48


def test_two_ranks_wait_for_the_command_bus_and_the_switch() -> None:
    """ACTs 1 and 3, RDs 35 and 35 + 8 + 2."""
    assert served(requests("0 0 0 5", "1 0 0 5")).cycles == 45 + 48


def test_commands_of_two_cycles_leave_room_for_one_every_second_cycle() -> None:
    _, trace = command_trace(TIMING, requests(*(f"{r} 0 0 5" for r in range(4))), refresh=False)
    acts = [c.cycle for c in commands_of(trace, TIMING) if c.name == "ACT"]
    assert acts == [1, 3, 5, 7]


def test_four_activations_fill_the_window() -> None:
    timing = TIMING.with_rules(nfaw=60)
    made = requests(*(f"0 {bg} 0 5" for bg in range(6)))
    _, trace = command_trace(timing, made, refresh=False)
    acts = [c.cycle for c in commands_of(trace, timing) if c.name == "ACT"]
    assert acts == [1, 9, 17, 25, 61, 69]


def test_a_refresh_falls_due_after_nrefi_and_takes_nrfc() -> None:
    """One at a time, RDs stand at 35 + 49 k; the last before 9360 at 9345. Then PRE nRTP later,
    REF nRP later, ACT nRFC later."""
    made = pattern(TIMING.with_ranks(1).geometry, row=np.zeros(200, int))
    _, trace = command_trace(TIMING.with_ranks(1), made, 1)
    commands = commands_of(trace, TIMING)
    place = next(i for i, c in enumerate(commands) if c.name == "REF")
    pre, ref, act, read = commands[place - 1 : place + 3]
    assert (pre.name, pre.cycle) == ("PRE", 9345 + 18)
    assert ref.cycle == 9363 + 34
    assert (act.name, act.cycle) == ("ACT", ref.cycle + 708)
    assert (read.name, read.cycle) == ("RD", act.cycle + 34)


def test_idle_ranks_are_refreshed_too() -> None:
    """In order, one command a cycle, while rank 0 cannot be precharged yet."""
    made = pattern(TIMING.geometry, row=np.zeros(400, int))
    _, trace = command_trace(TIMING, made, 1)
    refreshes = [(c.rank, c.cycle) for c in commands_of(trace, TIMING) if c.name == "REF"]
    assert refreshes[:3] == [(1, 9360), (2, 9361), (3, 9362)]
    assert [rank for rank, _ in refreshes] == [1, 2, 3, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("in_flight", [0, -3])
def test_nothing_in_flight_is_refused(in_flight: int) -> None:
    with pytest.raises(ImpossibleSetting, match=f"{in_flight} requests in flight"):
        served(requests("0 0 0 5"), in_flight)


def test_no_requests_are_refused() -> None:
    with pytest.raises(BadPattern, match="no requests"):
        served(requests("0 0 0 5").only(slice(0)))
