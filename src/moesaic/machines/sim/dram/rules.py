"""The timing rules, compiled: when a command may be issued, and what issuing it forbids.

`..._from` says the first cycle the rules allow, without the command bus; `issue_...` assumes that
the cycle is allowed. Issue cycles never decrease, so "from" values only grow.
"""

from __future__ import annotations

from moesaic.machines.sim.dram.bank_state import CLOSED, GATES, Ints, Records
from moesaic.machines.sim.dram.commands import ACT, RD, WR
from moesaic.machines.sim.dram.compiled import inlined
from moesaic.machines.sim.dram.timing import Rules


@inlined
def act_from(banks: Records, gates: Ints, bank: int) -> int:
    b = banks[bank]
    allowed: int = max(b.act_from, gates[b.group_gate + ACT], gates[b.rank_gate + ACT])
    return allowed


@inlined
def column_from(banks: Records, gates: Ints, bank: int, command: int) -> int:
    """The cycle from which RD or WR may be issued for an open row."""
    b = banks[bank]
    shared = max(gates[b.group_gate + command], gates[b.rank_gate + command])
    allowed: int = max(b.column_from, shared)
    return allowed


@inlined
def issue_act(
    banks: Records,
    ranks: Records,
    gates: Ints,
    bus: Records,
    rules: Rules,
    bank: int,
    row: int,
    cycle: int,
) -> None:
    b = banks[bank]
    b.open_row = row
    b.act_from = cycle + rules.nrc
    b.column_from = cycle + rules.nrcd
    b.pre_from = cycle + rules.nras
    r = ranks[b.rank]
    gates[b.group_gate + ACT] = cycle + rules.nrrd_l
    fifth_from = r.third_act + rules.nfaw  # this ACT is the fourth since third_act
    gates[b.rank_gate + ACT] = max(cycle + rules.nrrd_s, fifth_from)
    r.open_banks += 1
    r.third_act, r.second_act, r.last_act = r.second_act, r.last_act, cycle
    r.ref_from = max(r.ref_from, cycle + rules.nrc)
    bus[0].command_from = cycle + rules.command_act


@inlined
def issue_pre(
    banks: Records, ranks: Records, bus: Records, rules: Rules, bank: int, cycle: int
) -> None:
    b = banks[bank]
    b.open_row = CLOSED
    b.act_from = max(b.act_from, cycle + rules.nrp)
    r = ranks[b.rank]
    r.open_banks -= 1
    r.ref_from = max(r.ref_from, cycle + rules.nrp)
    bus[0].command_from = cycle + rules.command_pre


@inlined
def issue_ref(
    ranks: Records, gates: Ints, bus: Records, rules: Rules, rank: int, cycle: int
) -> None:
    gate = len(gates) - (len(ranks) - rank) * GATES + ACT
    gates[gate] = max(gates[gate], cycle + rules.nrfc)
    ranks[rank].ref_from = cycle + rules.nrfc
    bus[0].command_from = cycle + rules.command_ref


@inlined
def issue_rd(
    banks: Records,
    ranks: Records,
    gates: Ints,
    bus: Records,
    rules: Rules,
    bank: int,
    cycle: int,
    shared_bus: bool,
) -> int:
    """Returns the cycle at which the data are complete."""
    b = banks[bank]
    done = cycle + rules.ncl + rules.nbl
    b.pre_from = max(b.pre_from, cycle + rules.nrtp)
    gates[b.group_gate + RD] = cycle + rules.nccd_l
    gates[b.rank_gate + RD] = cycle + rules.nccd_s
    gates[b.rank_gate + WR] = max(gates[b.rank_gate + WR], cycle + rules.nrtw)
    if shared_bus:
        _switch_ranks(ranks, gates, rules, b.rank_gate, done)
    bus[0].command_from = cycle + rules.command_rd
    return done


@inlined
def issue_wr(
    banks: Records,
    ranks: Records,
    gates: Ints,
    bus: Records,
    rules: Rules,
    bank: int,
    cycle: int,
    shared_bus: bool,
) -> int:
    """Returns the cycle at which the data are complete."""
    b = banks[bank]
    done = cycle + rules.ncwl + rules.nbl
    b.pre_from = max(b.pre_from, done + rules.nwr)
    gates[b.group_gate + WR] = cycle + rules.nccd_l_wr
    gates[b.group_gate + RD] = max(gates[b.group_gate + RD], done + rules.nwtr_l)
    gates[b.rank_gate + WR] = cycle + rules.nccd_s
    gates[b.rank_gate + RD] = max(gates[b.rank_gate + RD], done + rules.nwtr_s)
    if shared_bus:
        _switch_ranks(ranks, gates, rules, b.rank_gate, done)
    bus[0].command_from = cycle + rules.command_wr
    return done


@inlined
def _switch_ranks(ranks: Records, gates: Ints, rules: Rules, own_gate: int, done: int) -> None:
    """Another rank's burst begins after this one and a gap."""
    begin = done + rules.rank_switch
    for gate in range(len(gates) - len(ranks) * GATES, len(gates), GATES):
        if gate != own_gate:
            gates[gate + RD] = max(gates[gate + RD], begin - rules.ncl)
            gates[gate + WR] = max(gates[gate + WR], begin - rules.ncwl)
