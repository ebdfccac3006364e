"""Do streams reach what the buses carry, and does the table say so for hosts and NDP units?"""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.machines.sim.dram.bandwidth import bandwidth_table, stream_bandwidth
from moesaic.machines.sim.dram.memory_system import simulate_all, split_by_rank
from moesaic.machines.sim.dram.named_patterns import named_pattern
from moesaic.machines.sim.dram.pattern import pattern
from moesaic.machines.sim.dram.simulate import simulate
from moesaic.machines.sim.dram.timing_file import known_timings, load_timing

TIMING = load_timing("ddr5-4800-trimoe")


@pytest.mark.parametrize("name", known_timings())
def test_a_stream_reaches_the_bus_limit(name: str) -> None:
    timing = load_timing(name)
    stream = named_pattern("stream", timing.geometry, 50_000)
    free = simulate(timing, stream, 32, refresh=False)
    assert 0.99 < free.bandwidth_gb_s / timing.peak_gb_s <= 1
    refreshed = simulate(timing, stream, 32)
    share = refreshed.bandwidth_gb_s / timing.peak_gb_s
    limit = 1 - timing.rules.nrfc / timing.rules.nrefi
    # Around each REF: rows close and open again, requests in flight end and begin.
    edges = timing.rules.nrp + timing.rules.nrcd + timing.rules.nrtp + 64
    assert limit - edges / timing.rules.nrefi < share < limit


def test_one_bank_group_is_held_back_by_its_column_gap() -> None:
    """Four rows, one in each bank: after the first RD one every nCCD_L."""
    made = named_pattern("same-bank-group", TIMING.geometry, 4 * 128)
    assert simulate(TIMING, made, 32, refresh=False).cycles == 83 + 511 * 12


def test_row_conflicts_cost_a_row_cycle_each() -> None:
    made = named_pattern("row-conflict", TIMING.geometry, 2000)
    result = simulate(TIMING, made, 8, refresh=False)
    assert result.cycles == 83 + 1999 * TIMING.rules.nrc
    assert result.hit_rate == 0


def test_changing_ranks_costs_the_switch() -> None:
    """Hits of one bank in each of two ranks: within a rank nCCD_L, so they alternate."""
    made = pattern(TIMING.geometry, rank=np.arange(200) % 2)
    assert simulate(TIMING, made, 32, refresh=False).cycles == 83 + 199 * (8 + 2)


def test_the_controller_groups_requests_by_rank() -> None:
    """A rank's next hit is ready before another rank's: the switch is paid now and then."""
    made = named_pattern("stream-ranks", TIMING.geometry, 50_000)
    for in_flight, least, most in ((2, 0.0, 0.4), (32, 0.98, 0.99)):
        result = simulate(TIMING, made, in_flight, refresh=False)
        assert least < result.bandwidth_gb_s / TIMING.peak_gb_s < most


def test_sub_channels_run_side_by_side() -> None:
    long, short = (named_pattern("stream", TIMING.geometry, n) for n in (4000, 1000))
    both = simulate_all(TIMING, [long, short])
    alone = simulate(TIMING, long)
    assert both.cycles == alone.cycles
    assert both.bytes == 5000 * 64
    assert both.bandwidth_gb_s == pytest.approx(alone.bandwidth_gb_s * 5 / 4)
    with pytest.raises(ImpossibleSetting, match="no sub-channels"):
        simulate_all(TIMING, [])


def test_ranks_can_be_sub_channels_of_their_own() -> None:
    made = named_pattern("random-ranks", TIMING.geometry, 1000)
    timing, parts = split_by_rank(TIMING, made)
    assert timing.geometry.ranks == 1
    assert [len(part) for part in parts] == [(made.rank == r).sum() for r in range(4)]
    assert all((part.rank == 0).all() for part in parts)


def test_inside_a_dimm_every_rank_adds_its_bandwidth() -> None:
    """TriMoE: 4 ranks x 38.4 GB/s = 153.6 GB/s in a DIMM, 38.4 on its channel."""
    rows = {
        (row.reader, row.ranks): row
        for row in bandwidth_table(TIMING, 16 << 20, ranks=(1, 4), refresh=False)
    }
    assert rows["ndp", 4].peak_bytes_per_s == pytest.approx(153.6e9)
    assert rows["host", 4].peak_bytes_per_s == pytest.approx(38.4e9)
    for key in (("host", 1), ("host", 4), ("ndp", 1), ("ndp", 4)):
        assert 0.98 < rows[key].efficiency <= 1, key
    assert rows["ndp", 1].bytes_per_s == pytest.approx(rows["host", 1].bytes_per_s)
    # RD takes two command cycles, so four ranks leave none for ACT: the bus is the limit.
    shared = rows["ndp-shared-commands", 4]
    assert 0.9 < shared.efficiency < rows["ndp", 4].efficiency


def test_a_block_fills_whole_requests() -> None:
    row = stream_bandwidth(TIMING, 100, "host", sub_channels=2)
    assert row.moved_bytes == 128
    assert row.seconds * row.bytes_per_s == pytest.approx(128)


def test_refused() -> None:
    with pytest.raises(UnknownName, match="host, ndp"):
        stream_bandwidth(TIMING, 100, "gpu")
    with pytest.raises(ImpossibleSetting, match="at least one byte"):
        stream_bandwidth(TIMING, 0)
