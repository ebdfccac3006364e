"""The controller a second time: cycle by cycle, request by request, nothing skipped or cached."""

from __future__ import annotations

from dataclasses import dataclass

from ddr_rules import Command, History

from moesaic.machines.sim.dram.pattern import Pattern
from moesaic.machines.sim.dram.timing import Timing


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
