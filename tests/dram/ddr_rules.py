"""The timing rules a second time, written as a table of gaps between pairs of commands.

Slow and plain on purpose, and independent of the simulator's: it looks back over all commands that
could still matter, where the simulator keeps the first allowed cycles."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.machines.sim.dram.bank_state import Ints
from moesaic.machines.sim.dram.commands import COMMANDS
from moesaic.machines.sim.dram.timing import Timing


class Command(NamedTuple):
    name: str
    cycle: int
    rank: int
    bg: int = 0
    bank: int = 0
    row: int = -1
    request: int = -1


class History:
    def __init__(self, timing: Timing, shared_bus: bool = True) -> None:
        self.rules, self.shared_bus = timing.rules, shared_bus
        self.commands: list[Command] = []
        self.open_rows: dict[tuple[int, int, int], int] = {}
        r = timing.rules
        longest = (r.nrfc, r.nrc, r.nfaw, r.ncwl + r.nbl + max(r.nwr, r.nwtr_l), r.nccd_l_wr)
        self.reach = max(*longest, r.ncl + r.nbl + r.rank_switch, r.nrtw, r.nrcd, r.nrrd_l)
        data = {"RD": r.ncl, "WR": r.ncwl}
        self.data_from = data
        end = r.ncwl + r.nbl
        self.bus = {name: getattr(r, f"command_{name.lower()}") for name in COMMANDS}
        self.same_bank = {
            ("ACT", "RD"): ("nRCD", r.nrcd),
            ("ACT", "WR"): ("nRCD", r.nrcd),
            ("ACT", "PRE"): ("nRAS", r.nras),
            ("ACT", "ACT"): ("nRC", r.nrc),
            ("PRE", "ACT"): ("nRP", r.nrp),
            ("RD", "PRE"): ("nRTP", r.nrtp),
            ("WR", "PRE"): ("nWR", end + r.nwr),
        }
        self.same_group = {
            ("ACT", "ACT"): ("nRRD_L", r.nrrd_l),
            ("RD", "RD"): ("nCCD_L", r.nccd_l),
            ("WR", "WR"): ("nCCD_L_WR", r.nccd_l_wr),
            ("WR", "RD"): ("nWTR_L", end + r.nwtr_l),
        }
        self.same_rank = {
            ("ACT", "ACT"): ("nRRD_S", r.nrrd_s),
            ("RD", "RD"): ("nCCD_S", r.nccd_s),
            ("WR", "WR"): ("nCCD_S", r.nccd_s),
            ("WR", "RD"): ("nWTR_S", end + r.nwtr_s),
            ("RD", "WR"): ("nRTW", r.nrtw),
            ("PRE", "REF"): ("nRP", r.nrp),
            ("ACT", "REF"): ("nRC", r.nrc),
            ("REF", "ACT"): ("nRFC", r.nrfc),
            ("REF", "REF"): ("nRFC", r.nrfc),
        }

    def broken(self, new: Command) -> list[str]:
        """The rules that the command would break."""
        found = [] if new.cycle >= 1 else ["first command"]
        found += self._row_state(new)
        acts = 0
        for old in reversed(self.commands):
            gap = new.cycle - old.cycle
            if gap >= self.reach:
                break
            if gap < self.bus[old.name]:
                found.append("command bus")
            found += [rule for rule, least in self._between(old, new) if gap < least]
            if old.name == new.name == "ACT" and old.rank == new.rank:
                acts += 1
                if acts == 4 and gap < self.rules.nfaw:
                    found.append("nFAW")
        return found

    def issue(self, new: Command) -> None:
        where = (new.rank, new.bg, new.bank)
        if new.name == "ACT":
            self.open_rows[where] = new.row
        elif new.name == "PRE":
            del self.open_rows[where]
        self.commands.append(new)

    def _row_state(self, new: Command) -> list[str]:
        row = self.open_rows.get((new.rank, new.bg, new.bank))
        if new.name == "REF":
            return ["REF with open rows"] * any(rank == new.rank for rank, _, _ in self.open_rows)
        if new.name == "ACT":
            return ["ACT of an open bank"] * (row is not None)
        if new.name == "PRE":
            return ["PRE of a closed bank"] * (row is None)
        return ["column of another row"] * (row is None or row != new.row)

    def _between(self, old: Command, new: Command) -> list[tuple[str, int]]:
        pair = (old.name, new.name)
        if old.rank != new.rank:
            if not self.shared_bus or not {*pair} <= self.data_from.keys():
                return []
            busy = self.data_from[old.name] + self.rules.nbl + self.rules.rank_switch
            return [("rank switch", busy - self.data_from[new.name])]
        tables = [self.same_rank]
        if (old.bg == new.bg) and "REF" not in pair:
            tables.append(self.same_group)
            if old.bank == new.bank:
                tables.append(self.same_bank)
        return [table[pair] for table in tables if pair in table]


def commands_of(trace: Ints, timing: Timing) -> list[Command]:
    """A simulator's trace, with banks by bank group."""
    g = timing.geometry
    found = []
    for cycle, kind, rank, bank, row, request in trace.tolist():
        bg, inside = divmod(bank % g.banks_per_rank, g.banks) if bank >= 0 else (0, 0)
        found.append(Command(COMMANDS[kind], cycle, rank, bg, inside, row, request))
    return found


def check(commands: list[Command], timing: Timing, shared_bus: bool = True) -> None:
    """Every command obeys every rule, given those before it."""
    history = History(timing, shared_bus)
    for command in commands:
        assert history.broken(command) == [], command
        history.issue(command)
