"""Does the fast simulator issue the very commands that a cycle-by-cycle controller issues?"""

from __future__ import annotations

import numpy as np
import pytest
from ddr_rules import commands_of
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_controller import SlowController

from moesaic.machines.sim.dram.named_patterns import named_pattern
from moesaic.machines.sim.dram.pattern import Pattern, pattern
from moesaic.machines.sim.dram.simulate import command_trace
from moesaic.machines.sim.dram.timing import Geometry, Rules, Timing
from moesaic.machines.sim.dram.timing_file import known_timings, load_timing


def same(
    timing: Timing, requests: Pattern, in_flight: int, refresh: bool, shared_bus: bool = True
) -> None:
    slow = SlowController(timing, requests, in_flight, refresh, shared_bus)
    slow.run()
    result, trace = command_trace(
        timing, requests, in_flight, refresh=refresh, shared_bus=shared_bus
    )
    assert commands_of(trace, timing) == slow.history.commands
    assert result.cycles == slow.cycles
    assert result.latency_nck == slow.latency
    assert result.hit_rate == slow.hits / len(requests)


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    """Small memories whose rules often bind, every rule with a value of its own."""
    few = st.integers(1, 12)
    value = {name: draw(few) for name in Rules._fields}
    value |= {"nbl": draw(st.sampled_from([1, 2, 4])), "rank_switch": draw(st.integers(0, 4))}
    value |= {name: draw(st.integers(1, 2)) for name in value if name.startswith("command_")}
    value["nccd_s"] = value["nbl"] + draw(st.integers(0, 3))
    value["nccd_l"] = value["nccd_s"] + draw(st.integers(0, 5))
    value["nccd_l_wr"] = value["nccd_s"] + draw(st.integers(0, 9))
    value["nrrd_l"] = value["nrrd_s"] + draw(st.integers(0, 5))
    value["nwtr_l"] = value["nwtr_s"] + draw(st.integers(0, 5))
    value["nfaw"] = draw(st.integers(1, 60))
    value["nras"] = draw(st.integers(1, 30))
    value["nrc"] = value["nras"] + draw(st.integers(0, 20))
    least = max(1, value["ncl"] - value["ncwl"] + value["nbl"])
    value["nrtw"] = least + draw(st.integers(0, 6))
    value["nrfc"] = draw(st.integers(1, 40))
    value["nrefi"] = 150 + draw(st.integers(0, 100))
    shape = [draw(st.integers(1, most)) for most in (3, 3, 2, 3, 4)]
    data_bits = 256 // value["nbl"]
    geometry = Geometry(data_bits, 64, *shape)
    return Timing("drawn", "drawn", 4800, geometry, Rules(**value))


@settings(max_examples=250)
@given(timings(), st.data())
def test_same_commands_on_any_memory(timing: Timing, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    in_flight = data.draw(st.integers(1, 24))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    g = timing.geometry
    writes = rng.random(count) < data.draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))
    parts = {"rank": g.ranks, "bg": g.bank_groups, "bank": g.banks, "row": g.rows}
    drawn = {name: rng.integers(most, size=count) for name, most in parts.items()}
    requests = pattern(g, write=writes, **drawn)
    same(timing, requests, in_flight, data.draw(st.booleans()), data.draw(st.booleans()))


@pytest.mark.parametrize("name", known_timings())
def test_same_commands_on_every_timing_set(name: str) -> None:
    timing = load_timing(name).with_ranks(2)
    requests = named_pattern("random-ranks", timing.geometry, 40, seed=3, write_share=0.3)
    same(timing, requests, 8, refresh=False)


@pytest.mark.parametrize("name", ["stream-rank-rows", "same-bank-group", "row-conflict"])
def test_same_commands_with_refresh(name: str) -> None:
    timing = load_timing("ddr4-3200").with_ranks(2).with_rules(nrfc=60, nrefi=330)
    requests = named_pattern(name, timing.geometry, 60)
    same(timing, requests, 12, refresh=True)
