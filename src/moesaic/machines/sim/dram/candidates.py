"""FR-FCFS with an open-row policy, compiled: the commands that waiting requests want next, and
which of them comes first.

Each bank with waiting requests has a candidate: ACT if it is closed, RD or WR (or one of each) for
its oldest hits, PRE for its oldest request if it has no hits: a row with waiting hits is not
closed. Of the candidates that can be issued first, column commands come before ACT and PRE; among
equals the oldest request decides.
"""

from __future__ import annotations

import numpy as np

from moesaic.machines.sim.dram.bank_state import CLOSED, NONE, Ints, Records
from moesaic.machines.sim.dram.commands import ACT, PRE, RD, WR
from moesaic.machines.sim.dram.compiled import inlined

# A choice is one number, the smaller the sooner: cycles to wait, then hits first, then age.
AGE_BITS = 40
MISS = 1 << AGE_BITS
WAIT_SHIFT = AGE_BITS + 1
NOTHING = (1 << 62) - 1  # waits longer than any command

# Columns of the table of candidates, whose first `loop.candidates` rows count, in no order:
# what decides among equals, the first cycle the bank allows, the gates of its group and rank for
# the command, bank and command.
ORDER, OWN_FROM, GROUP_GATE, RANK_GATE, BANK, COMMAND = range(6)
COLUMNS = 6


def no_candidates(banks: int) -> tuple[Ints, Ints]:
    """The table, and where each bank's two candidates stand in it (WR has a place of its own)."""
    return np.zeros((2 * banks, COLUMNS), np.int64), np.full((banks, 2), NONE, np.int64)


@inlined
def wait_of(choice: int) -> int:
    return choice >> WAIT_SHIFT


@inlined
def update(
    banks: Records, slots: Records, table: Ints, places: Ints, loop: Records, bank: int
) -> None:
    """After anything that happened to the bank or its requests."""
    b = banks[bank]
    if b.open_row == CLOSED or (b.hit_rd == NONE and b.hit_wr == NONE):
        command, slot, order = (ACT if b.open_row == CLOSED else PRE), b.first, MISS
        own = b.act_from if b.open_row == CLOSED else b.pre_from
    else:
        command, slot, order, own = RD, b.hit_rd, 0, b.column_from
    if slot != NONE:
        order |= slots[slot].request
    _set(banks, table, places, loop, bank, 0, slot != NONE, order, own, command)
    if b.hit_wr != NONE:
        order = slots[b.hit_wr].request
        _set(banks, table, places, loop, bank, 1, True, order, b.column_from, WR)
    elif places[bank, 1] != NONE:
        _set(banks, table, places, loop, bank, 1, False, 0, 0, WR)


@inlined
def _set(
    banks: Records,
    table: Ints,
    places: Ints,
    loop: Records,
    bank: int,
    which: int,
    wanted: bool,
    order: int,
    own_from: int,
    command: int,
) -> None:
    """Write, add or take away one candidate; the last takes the place of one that goes."""
    place = places[bank, which]
    if wanted:
        if place == NONE:
            place = loop[0].candidates
            places[bank, which] = place
            loop[0].candidates += 1
            table[place, BANK] = bank
        table[place, ORDER] = order
        table[place, OWN_FROM] = own_from
        table[place, GROUP_GATE] = banks[bank].group_gate + command
        table[place, RANK_GATE] = banks[bank].rank_gate + command
        table[place, COMMAND] = command
    elif place != NONE:
        loop[0].candidates -= 1
        last = loop[0].candidates
        for column in range(COLUMNS):
            table[place, column] = table[last, column]
        places[table[last, BANK], 1 if table[last, COMMAND] == WR else 0] = place
        places[bank, which] = NONE


@inlined
def choice_at(table: Ints, gates: Ints, place: int, now: int) -> int:
    """One candidate, from cycle `now` on."""
    shared = max(gates[table[place, GROUP_GATE]], gates[table[place, RANK_GATE]])
    cycle = max(table[place, OWN_FROM], shared, now)
    choice: int = ((cycle - now) << WAIT_SHIFT) | table[place, ORDER]
    return choice


@inlined
def choose(
    banks: Records, gates: Ints, table: Ints, count: int, refreshing: int, now: int
) -> tuple[int, int, int]:
    """The best of `count` candidates: (choice, bank, command). `refreshing` has a bit for each
    rank whose refresh is due: it takes no requests."""
    best, place = NOTHING, 0
    for i in range(count):
        if refreshing and (refreshing >> banks[table[i, BANK]].rank) & 1:
            continue
        choice = choice_at(table, gates, i, now)
        if choice < best:
            best, place = choice, i
    return best, table[place, BANK], table[place, COMMAND]
