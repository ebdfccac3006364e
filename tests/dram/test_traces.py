"""Does every command of long runs obey every rule, and is every request served once?"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from ddr_rules import Command, check, commands_of

from made_up import pairs_first
from moesaic.machines.sim.dram.named_patterns import PATTERNS, named_pattern
from moesaic.machines.sim.dram.simulate import command_trace, simulate
from moesaic.machines.sim.dram.timing_file import known_timings, load_timing


@pytest.mark.parametrize(
    ("name", "pattern", "shared_bus"),
    pairs_first(list(product(known_timings(), PATTERNS, [True, False]))),
)
def test_every_command_is_legal(name: str, pattern: str, shared_bus: bool) -> None:
    timing = load_timing(name)
    requests = named_pattern(pattern, timing.geometry, 600, seed=1, write_share=0.2)
    result, trace = command_trace(timing, requests, 48, shared_bus=shared_bus)
    commands = commands_of(trace, timing)
    check(commands, timing, shared_bus)
    columns = [c for c in commands if c.name in ("RD", "WR")]
    assert sorted(c.request for c in columns) == list(range(600))
    for c in columns:
        i = c.request
        asked = (requests.rank[i], requests.bg[i], requests.bank[i], requests.row[i])
        assert (c.rank, c.bg, c.bank, c.row) == asked
        assert (c.name == "WR") == requests.write[i]
    opened = {c.request for c in commands if c.name == "ACT"}
    assert result.hit_rate == (600 - len(opened)) / 600
    assert result == simulate(timing, requests, 48, shared_bus=shared_bus), "a trace is free"


def test_every_rank_is_refreshed_once_per_interval() -> None:
    timing = load_timing("ddr5-4800-trimoe")
    requests = named_pattern("random-ranks", timing.geometry, 8000)
    result, trace = command_trace(timing, requests)
    refreshes = [c for c in commands_of(trace, timing) if c.name == "REF"]
    due = (result.cycles - 1000) // timing.rules.nrefi  # one near the end may not be issued
    assert due >= 6
    counts = Counter(c.rank for c in refreshes)
    assert all(counts[rank] in (due, due + 1) for rank in range(4))
    for c in refreshes:
        late = c.cycle % timing.rules.nrefi
        assert late < timing.rules.nras + timing.rules.nrp + 128


def test_the_checker_finds_what_is_wrong() -> None:
    timing = load_timing("ddr5-4800-trimoe")
    requests = named_pattern("random", timing.geometry, 200)
    commands = commands_of(command_trace(timing, requests)[1], timing)
    check(commands, timing)
    for i in range(20, 60):
        early: Command = commands[i]._replace(cycle=commands[i].cycle - 40)
        with pytest.raises(AssertionError):
            check([*commands[:i], early, *commands[i + 1 :]], timing)
