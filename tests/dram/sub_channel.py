"""One sub-channel to probe by hand: when may a command be issued, and what follows from it.

The same compiled rules as the simulator's; no requests, no controller.
"""

from __future__ import annotations

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.machines.sim.dram import commands as at
from moesaic.machines.sim.dram import rules as rule
from moesaic.machines.sim.dram.bank_state import CLOSED, fresh_state
from moesaic.machines.sim.dram.pattern import pattern
from moesaic.machines.sim.dram.timing import Timing


class IllegalCommand(ImpossibleSetting):
    """A command that the sub-channel's state or timing does not allow."""


class SubChannel:
    def __init__(self, timing: Timing, *, shared_bus: bool = True) -> None:
        self.timing = timing
        self.shared_bus = shared_bus
        self._state = fresh_state(timing.geometry)

    def earliest(self, command: str, rank: int = 0, bg: int = 0, bank: int = 0) -> int:
        """The first cycle at which the command may be issued; REF has only a rank."""
        kind, number = self._find(command, rank, bg, bank)
        banks, ranks, gates, bus = self._state
        self._check_row(kind, command, number, rank)
        if kind == at.ACT:
            allowed = rule.act_from(banks, gates, number)
        elif kind in (at.RD, at.WR):
            allowed = rule.column_from(banks, gates, number, kind)
        elif kind == at.PRE:
            allowed = banks["pre_from"][number]
        else:
            allowed = ranks["ref_from"][rank]
        return int(max(allowed, bus["command_from"][0]))

    def issue(
        self, command: str, cycle: int, rank: int = 0, bg: int = 0, bank: int = 0, row: int = 0
    ) -> None:
        allowed = self.earliest(command, rank, bg, bank)
        if cycle < allowed:
            raise IllegalCommand(f"{command} in cycle {cycle}: allowed from {allowed} on")
        kind, number = self._find(command, rank, bg, bank, row)
        banks, ranks, gates, bus = self._state
        rules = self.timing.rules
        if kind == at.ACT:
            rule.issue_act(banks, ranks, gates, bus, rules, number, row, cycle)
        elif kind == at.RD:
            rule.issue_rd(banks, ranks, gates, bus, rules, number, cycle, self.shared_bus)
        elif kind == at.WR:
            rule.issue_wr(banks, ranks, gates, bus, rules, number, cycle, self.shared_bus)
        elif kind == at.PRE:
            rule.issue_pre(banks, ranks, bus, rules, number, cycle)
        else:
            rule.issue_ref(ranks, gates, bus, rules, rank, cycle)

    def _find(self, command: str, rank: int, bg: int, bank: int, row: int = 0) -> tuple[int, int]:
        """The command's number and the bank's."""
        if command not in at.COMMANDS:
            raise UnknownName("DRAM command", command, at.COMMANDS)
        geometry = self.timing.geometry
        where = pattern(geometry, rank=[rank], bg=bg, bank=bank, row=row)
        return at.COMMANDS.index(command), int(where.global_bank(geometry)[0])

    def _check_row(self, kind: int, command: str, number: int, rank: int) -> None:
        is_open = self._state.banks["open_row"][number] != CLOSED
        if kind == at.REF and self._state.ranks["open_banks"][rank]:
            raise IllegalCommand(f"REF: rank {rank} has open rows, precharge them first")
        if kind == at.ACT and is_open:
            raise IllegalCommand("ACT: the bank has an open row, precharge it first")
        if kind in (at.RD, at.WR, at.PRE) and not is_open:
            raise IllegalCommand(f"{command}: the bank has no open row")
