"""Issuing the chosen command, compiled: the rules' state, the waiting requests, the sums of the
result and the trace."""

from __future__ import annotations

import numpy as np

from moesaic.machines.sim.dram import commands as at
from moesaic.machines.sim.dram.bank_state import NONE, Ints, Records, record, records
from moesaic.machines.sim.dram.commands import ACT, NO_BANK, NO_REQUEST, NO_ROW, PRE, RD, REF
from moesaic.machines.sim.dram.compiled import inlined
from moesaic.machines.sim.dram.rules import issue_act, issue_pre, issue_rd, issue_ref, issue_wr
from moesaic.machines.sim.dram.timing import Rules
from moesaic.machines.sim.dram.waiting import remove_hit, row_closes, row_opens

_LOOP = record(
    arrived=0,  # requests
    served=0,  # requests whose RD or WR is issued
    free=0,  # slots
    read_head=0,  # where the ring of reads' completions begins
    reading=0,  # reads whose data are under way
    write_head=0,
    writing=0,
    cycles=0,  # last completion
    latency=0,  # sum over requests
    hits=0,
    commands=0,  # issued
)


def fresh_loop(slots: int) -> tuple[Records, Ints]:
    """The loop's state, and the rings of completions to come of reads and of writes."""
    loop = records(1, _LOOP)
    loop["free"] = slots
    return loop, np.zeros((2, slots), np.int64)


@inlined
def around(place: int, length: int) -> int:
    """The place in a ring, for one less than two lengths from its beginning: dividing is slow."""
    return place - length if place >= length else place


@inlined
def issue_choice(
    banks: Records,
    ranks: Records,
    gates: Ints,
    bus: Records,
    slots: Records,
    loop: Records,
    rings: Ints,
    trace: Ints,
    rules: Rules,
    shared_bus: bool,
    bank: int,
    command: int,
    cycle: int,
) -> None:
    """The chosen candidate."""
    b = banks[bank]
    slot, row = b.first, b.open_row
    if command == ACT:
        row = slots[slot].row
        slots[slot].missed = 1
        issue_act(banks, ranks, gates, bus, rules, bank, row, cycle)
        row_opens(banks, slots, bank)
    elif command == PRE:
        row = NO_ROW
        issue_pre(banks, ranks, bus, rules, bank, cycle)
    elif command == RD:
        slot = b.hit_rd
        done = issue_rd(banks, ranks, gates, bus, rules, bank, cycle, shared_bus)
        _serve(banks, slots, loop, rings, bank, slot, done)
    else:
        slot = b.hit_wr
        done = issue_wr(banks, ranks, gates, bus, rules, bank, cycle, shared_bus)
        _serve(banks, slots, loop, rings, bank, slot, done)
    _write_down(loop, trace, cycle, command, b.rank, bank, row, slots[slot].request)


@inlined
def _serve(
    banks: Records,
    slots: Records,
    loop: Records,
    rings: Ints,
    bank: int,
    slot: int,
    done: int,
) -> None:
    """A request's data are complete at `done`."""
    state, s = loop[0], slots[slot]
    if s.write:
        rings[1, around(state.write_head + state.writing, rings.shape[1])] = done
        state.writing += 1
    else:
        rings[0, around(state.read_head + state.reading, rings.shape[1])] = done
        state.reading += 1
    state.served += 1
    state.cycles = max(state.cycles, done)
    state.latency += done - s.arrived
    state.hits += 1 - s.missed
    remove_hit(banks, slots, loop, bank, slot)


@inlined
def issue_refresh(
    banks: Records,
    ranks: Records,
    gates: Ints,
    bus: Records,
    loop: Records,
    trace: Ints,
    rules: Rules,
    rank: int,
    bank: int,
    cycle: int,
) -> None:
    """PRE of an open bank, or REF where all are closed."""
    if bank != NONE:
        issue_pre(banks, ranks, bus, rules, bank, cycle)
        row_closes(banks, bank)
        _write_down(loop, trace, cycle, PRE, rank, bank, NO_ROW, NO_REQUEST)
        return
    issue_ref(ranks, gates, bus, rules, rank, cycle)
    ranks[rank].due += rules.nrefi
    _write_down(loop, trace, cycle, REF, rank, NO_BANK, NO_ROW, NO_REQUEST)


@inlined
def _write_down(
    loop: Records,
    trace: Ints,
    cycle: int,
    command: int,
    rank: int,
    bank: int,
    row: int,
    request: int,
) -> None:
    """A trace without room only counts."""
    place = loop[0].commands
    loop[0].commands += 1
    if place < len(trace):
        trace[place, at.CYCLE] = cycle
        trace[place, at.COMMAND] = command
        trace[place, at.RANK] = rank
        trace[place, at.BANK] = bank
        trace[place, at.ROW] = row
        trace[place, at.REQUEST] = request
