"""Does the fast simulator issue the very commands that a cycle-by-cycle controller issues?

That controller is here: request by request, nothing skipped or cached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from ddr_rules import Command, History, commands_of
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.machines.sim.dram.named_patterns import named_pattern
from moesaic.machines.sim.dram.pattern import Pattern, pattern
from moesaic.machines.sim.dram.simulate import command_trace
from moesaic.machines.sim.dram.timing import Geometry, Rules, Timing
from moesaic.machines.sim.dram.timing_file import known_timings, load_timing


@dataclass
class Request:
    number: int
    name: str
    where: tuple[int, int, int]
    row: int
    arrived: int
    missed: bool = False
    done: int = -1


class SlowController:
    def __init__(
        self, timing: Timing, pattern: Pattern, in_flight: int, refresh: bool, shared_bus: bool
    ) -> None:
        self.timing, self.pattern, self.in_flight = timing, pattern, in_flight
        self.history = History(timing, shared_bus)
        first = timing.rules.nrefi if refresh else 1 << 60
        self.due = [first] * timing.geometry.ranks
        self.waiting: list[Request] = []
        self.all: list[Request] = []

    def run(self) -> None:
        cycle = 0
        while len(self.all) < len(self.pattern) or self.waiting:
            if cycle:
                self._one_command(cycle)
            self._arrivals(cycle)
            cycle += 1

    @property
    def cycles(self) -> int:
        return max(r.done for r in self.all)

    @property
    def latency(self) -> float:
        return sum(r.done - r.arrived for r in self.all) / len(self.all)

    @property
    def hits(self) -> int:
        return sum(not r.missed for r in self.all)

    def _arrivals(self, cycle: int) -> None:
        p = self.pattern
        under_way = sum(r.done < 0 or r.done > cycle for r in self.all)
        while under_way < self.in_flight and len(self.all) < len(p):
            i = len(self.all)
            where = (int(p.rank[i]), int(p.bg[i]), int(p.bank[i]))
            new = Request(i, "WR" if p.write[i] else "RD", where, int(p.row[i]), cycle)
            self.all.append(new)
            self.waiting.append(new)
            under_way += 1

    def _one_command(self, cycle: int) -> None:
        last = self.history.commands[-1:]
        if last and cycle < last[0].cycle + self.history.bus[last[0].name]:
            return
        if self._refresh(cycle):
            return
        free = [r for r in self.waiting if cycle < self.due[r.where[0]]]
        opened = self.history.open_rows
        hits = [r for r in free if opened.get(r.where) == r.row]
        for r in hits:
            if self._try(Command(r.name, cycle, *r.where, r.row, r.number)):
                latency = self.history.data_from[r.name] + self.timing.rules.nbl
                r.done = cycle + latency
                self.waiting.remove(r)
                return
        for r in free:
            if r.where not in opened:
                if self._try(Command("ACT", cycle, *r.where, r.row, r.number)):
                    r.missed = True
                    return
                continue
            if any(hit.where == r.where for hit in hits):
                continue
            if self._try(Command("PRE", cycle, *r.where, -1, r.number)):
                return

    def _refresh(self, cycle: int) -> bool:
        for rank, due in enumerate(self.due):
            if cycle < due:
                continue
            mine = sorted(where for where in self.history.open_rows if where[0] == rank)
            if any(self._try(Command("PRE", cycle, *where)) for where in mine):
                return True
            if not mine and self._try(Command("REF", cycle, rank)):
                self.due[rank] += self.timing.rules.nrefi
                return True
        return False

    def _try(self, command: Command) -> bool:
        if self.history.broken(command):
            return False
        self.history.issue(command)
        return True


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
