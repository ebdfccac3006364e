"""The timing rules, compiled: when a command may be issued, and what issuing it forbids.

`..._from` says the first cycle the rules allow, without the command bus; `issue_...` assumes that
the cycle is allowed. Issue cycles never decrease, so "from" values only grow.
"""

from __future__ import annotations

from moesaic.machines.sim.dram.bank_state import CLOSED, Records
from moesaic.machines.sim.dram.compiled import inlined
from moesaic.machines.sim.dram.timing import Rules


@inlined
def act_from(banks: Records, groups: Records, ranks: Records, bank: int) -> int:
    b = banks[bank]
    return max(b.act_from, groups[b.group].act_from, ranks[b.rank].act_from)


@inlined
def rd_from(banks: Records, groups: Records, ranks: Records, bank: int) -> int:
    b = banks[bank]
    return max(b.column_from, groups[b.group].rd_from, ranks[b.rank].rd_from)


@inlined
def wr_from(banks: Records, groups: Records, ranks: Records, bank: int) -> int:
    b = banks[bank]
    return max(b.column_from, groups[b.group].wr_from, ranks[b.rank].wr_from)


@inlined
def issue_act(
    banks: Records,
    groups: Records,
    ranks: Records,
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
    groups[b.group].act_from = cycle + rules.nrrd_l
    r = ranks[b.rank]
    r.open_banks += 1
    r.act_from = max(cycle + rules.nrrd_s, r.third_act + rules.nfaw)  # a fifth in the window
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
def issue_ref(ranks: Records, bus: Records, rules: Rules, rank: int, cycle: int) -> None:
    r = ranks[rank]
    r.act_from = max(r.act_from, cycle + rules.nrfc)
    r.ref_from = cycle + rules.nrfc
    bus[0].command_from = cycle + rules.command_ref


@inlined
def issue_rd(
    banks: Records,
    groups: Records,
    ranks: Records,
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
    groups[b.group].rd_from = cycle + rules.nccd_l
    r = ranks[b.rank]
    r.rd_from = cycle + rules.nccd_s
    r.wr_from = max(r.wr_from, cycle + rules.nrtw)
    if shared_bus:
        _switch_ranks(ranks, rules, b.rank, done)
    bus[0].command_from = cycle + rules.command_rd
    return done


@inlined
def issue_wr(
    banks: Records,
    groups: Records,
    ranks: Records,
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
    g, r = groups[b.group], ranks[b.rank]
    g.wr_from = cycle + rules.nccd_l_wr
    g.rd_from = max(g.rd_from, done + rules.nwtr_l)
    r.wr_from = max(r.wr_from, cycle + rules.nccd_s)
    r.rd_from = max(r.rd_from, done + rules.nwtr_s)
    if shared_bus:
        _switch_ranks(ranks, rules, b.rank, done)
    bus[0].command_from = cycle + rules.command_wr
    return done


@inlined
def _switch_ranks(ranks: Records, rules: Rules, rank: int, done: int) -> None:
    """Another rank's burst begins after this one and a gap."""
    begin = done + rules.rank_switch
    for other in range(len(ranks)):
        if other != rank:
            r = ranks[other]
            r.rd_from = max(r.rd_from, begin - rules.ncl)
            r.wr_from = max(r.wr_from, begin - rules.ncwl)
