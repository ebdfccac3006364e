"""Does every timing rule refuse a command one cycle too early, and allow it on time?

One sub-channel is probed with the same compiled rules as the simulator's, without requests and
without a controller."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import NamedTuple

import pytest
from ddr_rules import Command, History, check, commands_of

from made_up import pairs_first
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.machines.sim.dram import commands as at
from moesaic.machines.sim.dram import rules as rule
from moesaic.machines.sim.dram.bank_state import CLOSED, fresh_state
from moesaic.machines.sim.dram.named_patterns import PATTERNS, named_pattern
from moesaic.machines.sim.dram.pattern import BadPattern, pattern
from moesaic.machines.sim.dram.simulate import command_trace, simulate
from moesaic.machines.sim.dram.timing import Timing
from moesaic.machines.sim.dram.timing_file import known_timings, load_timing


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


START = 1000  # nothing before it matters


class Probe(NamedTuple):
    """Commands that are issued as (name, cycles after START, rank, bg, bank), then the probed one
    and the cycles after START from which a formula allows it."""

    rule: str
    before: str
    probed: str
    gap: str
    changes: str = ""


# Times are expressions over the rules; addresses are rank, bank group, bank.
PROBES = [
    Probe("nRCD, read", "ACT 0 000", "RD 000", "nrcd"),
    Probe("nRCD, write", "ACT 0 000", "WR 000", "nrcd"),
    Probe("nRAS", "ACT 0 000", "PRE 000", "nras"),
    Probe("nRP", "ACT 0 000;PRE 200 000", "ACT 000", "200+nrp"),
    Probe("nRC", "ACT 0 000;PRE nras 000", "ACT 000", "nrc", "nrc=nras+nrp+9"),
    Probe("nRC is longer than nRAS + nRP only where it says so", "ACT 0 000;PRE nras 000",
          "ACT 000", "nras+nrp", "nrc=nras+nrp"),
    Probe("nRTP", "ACT 0 000;RD 200 000", "PRE 000", "200+nrtp"),
    Probe("nWR", "ACT 0 000;WR 200 000", "PRE 000", "200+ncwl+nbl+nwr"),
    Probe("nCCD_S, reads", "ACT 0 000;ACT 50 010;RD 200 000", "RD 010", "200+nccd_s"),
    Probe("nCCD_L, reads", "ACT 0 000;ACT 50 001;RD 200 000", "RD 001", "200+nccd_l"),
    Probe("nCCD_L, one bank", "ACT 0 000;RD 200 000", "RD 000", "200+nccd_l"),
    Probe("nCCD_S, writes", "ACT 0 000;ACT 50 010;WR 200 000", "WR 010", "200+nccd_s"),
    Probe("nCCD_L_WR", "ACT 0 000;ACT 50 001;WR 200 000", "WR 001", "200+nccd_l_wr"),
    Probe("nRTW", "ACT 0 000;ACT 50 010;RD 200 000", "WR 010", "200+nrtw"),
    Probe("nWTR_S", "ACT 0 000;ACT 50 010;WR 200 000", "RD 010", "200+ncwl+nbl+nwtr_s"),
    Probe("nWTR_L", "ACT 0 000;ACT 50 001;WR 200 000", "RD 001", "200+ncwl+nbl+nwtr_l"),
    Probe("nRRD_S", "ACT 0 000", "ACT 010", "nrrd_s"),
    Probe("nRRD_L", "ACT 0 000", "ACT 001", "nrrd_l"),
    Probe("nFAW", "ACT 0 000;ACT nrrd_s 010;ACT 2*nrrd_s 020;ACT 3*nrrd_s 030", "ACT 001",
          "nfaw", "nfaw=5*nrrd_s+nrrd_l"),
    Probe("nFAW counts ranks apart", "ACT 0 000;ACT nrrd_s 010;ACT 2*nrrd_s 020;ACT 3*nrrd_s 030",
          "ACT 100", "3*nrrd_s+command_act", "nfaw=5*nrrd_s+nrrd_l"),
    Probe("rank switch, reads", "ACT 0 000;ACT 50 100;RD 200 000", "RD 100", "200+nbl+rank_switch"),
    Probe("rank switch, writes", "ACT 0 000;ACT 50 100;WR 200 000", "WR 100",
          "200+nbl+rank_switch"),
    Probe("rank switch, read to write", "ACT 0 000;ACT 50 100;RD 200 000", "WR 100",
          "200+ncl+nbl+rank_switch-ncwl"),
    Probe("rank switch, write to read", "ACT 0 000;ACT 50 100;WR 200 000", "RD 100",
          "200+max(ncwl+nbl+rank_switch-ncl,command_wr)"),
    Probe("nRP before REF", "ACT 0 000;PRE 200 000", "REF 000", "200+nrp"),
    Probe("nRC before REF", "ACT 0 000;PRE nras 000", "REF 000", "nrc", "nrc=nras+nrp+9"),
    Probe("nRFC", "REF 0 000", "ACT 000", "nrfc"),
    Probe("nRFC, any bank", "REF 0 000", "ACT 031", "nrfc"),
    Probe("nRFC, next REF", "REF 0 000", "REF 000", "nrfc"),
    Probe("nRFC counts ranks apart", "REF 0 000", "ACT 100", "command_ref"),
    Probe("command bus after ACT", "ACT 0 000", "ACT 100", "command_act"),
    Probe("command bus after RD", "ACT 0 000;ACT 50 010;RD 200 000", "PRE 010",
          "200+command_rd"),
    Probe("command bus after WR", "ACT 0 000;ACT 50 010;WR 200 000", "PRE 010",
          "200+command_wr"),
    Probe("command bus after PRE", "ACT 0 000;ACT 50 010;PRE 200 000", "PRE 010",
          "200+command_pre"),
    Probe("command bus after REF", "REF 0 000", "REF 100", "command_ref"),
]  # fmt: skip


def value(timing: Timing, expression: str) -> int:
    return int(eval(expression, {"max": max}, timing.rules._asdict()))


def prepared(name: str, probe: Probe) -> tuple[Timing, list[Command], Command]:
    """The commands before, and the probed one on time."""
    timing = load_timing(name).with_ranks(2)
    if probe.changes:
        rule, expression = probe.changes.split("=")
        timing = timing.with_rules(**{rule: value(timing, expression)})
    before = []
    for words in probe.before.split(";"):
        command, cycle, where = words.split()
        issued = Command(command, START + value(timing, cycle), *map(int, where))
        before.append(issued._replace(row=7))
    command, where = probe.probed.split()
    on_time = START + value(timing, probe.gap)
    return timing, before, Command(command, on_time, *map(int, where))._replace(row=7)


@pytest.mark.parametrize("probe", PROBES, ids=lambda p: p.rule)
@pytest.mark.parametrize("name", known_timings())
def test_one_cycle_too_early_and_on_time(name: str, probe: Probe) -> None:
    timing, before, probed = prepared(name, probe)
    channel, history = SubChannel(timing), History(timing)
    for command in before:
        channel.issue(*command[:6])
        assert history.broken(command) == []
        history.issue(command)
    where = probed[2:5]
    assert channel.earliest(probed.name, *where) == probed.cycle
    early = probed._replace(cycle=probed.cycle - 1)
    with pytest.raises(IllegalCommand, match=f"allowed from {probed.cycle} on"):
        channel.issue(*early[:6])
    assert history.broken(early), "the test's own rules agree"
    assert history.broken(probed) == []
    channel.issue(*probed[:6])


def test_the_first_command_is_in_cycle_1() -> None:
    channel = SubChannel(load_timing("ddr5-4800-trimoe"))
    assert channel.earliest("ACT") == 1
    with pytest.raises(IllegalCommand):
        channel.issue("ACT", 0)


def test_ranks_with_data_paths_of_their_own_share_only_commands() -> None:
    timing = load_timing("ddr5-4800-trimoe")
    channel = SubChannel(timing, shared_bus=False)
    for rank in range(2):
        channel.issue("ACT", START + 10 * rank, rank)
    channel.issue("RD", START + 100, 0)
    assert channel.earliest("RD", 1) == START + 100 + timing.rules.command_rd
    assert channel.earliest("RD", 0) == START + 100 + timing.rules.nccd_l


@pytest.mark.parametrize("command", ["RD", "WR", "PRE"])
def test_a_closed_bank_has_nothing_to_read_or_close(command: str) -> None:
    channel = SubChannel(load_timing("ddr4-3200"))
    with pytest.raises(IllegalCommand, match="no open row"):
        channel.earliest(command)


def test_an_open_bank_is_neither_opened_nor_refreshed() -> None:
    channel = SubChannel(load_timing("ddr4-3200"))
    channel.issue("ACT", START, row=3)
    for command in ("ACT", "REF"):
        with pytest.raises(IllegalCommand, match="precharge"):
            channel.earliest(command)
    assert channel.earliest("REF", 1) > START


def test_mistakes_are_named() -> None:
    channel = SubChannel(load_timing("ddr4-3200"))
    with pytest.raises(UnknownName, match="ACT, PRE, RD, REF, WR"):
        channel.earliest("READ")
    with pytest.raises(BadPattern, match="bg is 4, expected 0 to 3"):
        channel.earliest("ACT", bg=4)


# Does every command of long runs obey every rule, and is every request served once?


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
