"""FR-FCFS with an open-row policy, compiled: the commands that waiting requests want next, and
which of them comes first.

Each bank with waiting requests has a candidate: ACT if it is closed, RD or WR (or one of each) for
its oldest hits, PRE for its oldest request if it has no hits: a row with waiting hits is not
closed. Of the candidates that can be issued first, column commands come before ACT and PRE; among
equals the oldest request decides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moesaic.machines.sim.dram.bank_state import CLOSED, NONE, Ints, Records
from moesaic.machines.sim.dram.commands import ACT, PRE, RD, WR
from moesaic.machines.sim.dram.compiled import inlined
from moesaic.machines.sim.dram.refresh import NEVER

# Candidates of one class are compared by one number, the smaller the sooner: cycles to wait, then
# age, which is the request's number.
WAIT_SHIFT = 40
NOTHING = (1 << 62) - 1  # waits longer than any command

# Rows of the table of candidates: age, the first cycle the bank allows, the gates of its group and
# rank for the command, bank and command. Misses (ACT, PRE) stand in the first columns, at most one
# for every bank, hits (RD, WR) in the others; the first `sizes` of each class count, in no order.
AGE, OWN_FROM, GROUP_GATE, RANK_GATE, BANK, COMMAND = range(6)
ROWS = 6
MISS, HIT = range(2)

# Columns of the best of each class. It stays the best until a command delays others of its class,
# its bank changes, or its cycle goes by: CYCLE then is STALE or past, and all are compared again.
BEST_CYCLE, BEST_AGE, BEST_BANK, BEST_COMMAND = range(4)
STALE = -1


class Candidates(NamedTuple):
    table: Ints  # [ROWS, 3 * banks]
    places: Ints  # [banks, 3] where each bank's miss, RD and WR stand in the table, or NONE
    sizes: Ints  # [2]
    best: Ints  # [2, 4]


def no_candidates(banks: int) -> Candidates:
    best = np.full((2, 4), NONE, np.int64)
    best[:, BEST_CYCLE] = NEVER
    return Candidates(
        np.zeros((ROWS, 3 * banks), np.int64),
        np.full((banks, 3), NONE, np.int64),
        np.zeros(2, np.int64),
        best,
    )


@inlined
def forget(best: Ints, which: int) -> None:
    """After anything that may delay others than the bank it happened to."""
    best[which, BEST_CYCLE] = STALE


@inlined
def update(
    banks: Records,
    gates: Ints,
    slots: Records,
    table: Ints,
    places: Ints,
    sizes: Ints,
    best: Ints,
    bank: int,
    refreshing: int,
    now: int,
) -> None:
    """After anything that happened to the bank or its requests; commands can be issued from cycle
    `now` on."""
    b = banks[bank]
    hits = b.hit_rd != NONE or b.hit_wr != NONE
    if best[HIT, BEST_BANK] == bank:
        forget(best, HIT)
    if best[MISS, BEST_BANK] == bank:
        forget(best, MISS)
    taken = (refreshing >> b.rank) & 1
    if b.first == NONE or hits:
        _remove(table, places, sizes, bank, 0)
    else:
        closed = b.open_row == CLOSED
        own = b.act_from if closed else b.pre_from
        age = slots[b.first].request
        _set(banks, table, places, sizes, bank, 0, ACT if closed else PRE, age, own)
        if not taken:
            _compare(table, gates, best, places[bank, 0], MISS, now)
    _update_hit(
        banks, gates, slots, table, places, sizes, best, bank, RD, b.hit_rd, taken, now
    )  # fmt: skip
    _update_hit(
        banks, gates, slots, table, places, sizes, best, bank, WR, b.hit_wr, taken, now
    )  # fmt: skip


@inlined
def _update_hit(
    banks: Records,
    gates: Ints,
    slots: Records,
    table: Ints,
    places: Ints,
    sizes: Ints,
    best: Ints,
    bank: int,
    command: int,
    slot: int,
    taken: int,
    now: int,
) -> None:
    if slot == NONE:
        _remove(table, places, sizes, bank, command)
    else:
        age, own = slots[slot].request, banks[bank].column_from
        _set(banks, table, places, sizes, bank, command, command, age, own)
        if not taken:
            _compare(table, gates, best, places[bank, command], HIT, now)


@inlined
def _set(
    banks: Records,
    table: Ints,
    places: Ints,
    sizes: Ints,
    bank: int,
    which: int,
    command: int,
    age: int,
    own_from: int,
) -> None:
    place = places[bank, which]
    if place == NONE:
        kind = MISS if which == 0 else HIT
        place = kind * len(banks) + sizes[kind]
        sizes[kind] += 1
        places[bank, which] = place
        table[BANK, place] = bank
    table[AGE, place] = age
    table[OWN_FROM, place] = own_from
    table[GROUP_GATE, place] = banks[bank].group_gate + command
    table[RANK_GATE, place] = banks[bank].rank_gate + command
    table[COMMAND, place] = command


@inlined
def _remove(table: Ints, places: Ints, sizes: Ints, bank: int, which: int) -> None:
    """The last of the class takes its place."""
    place = places[bank, which]
    if place != NONE:
        kind = MISS if which == 0 else HIT
        sizes[kind] -= 1
        last = kind * len(places) + sizes[kind]
        for row in range(ROWS):
            table[row, place] = table[row, last]
        places[table[BANK, last], table[COMMAND, last] if kind == HIT else 0] = place
        places[bank, which] = NONE


@inlined
def _first_cycle(table: Ints, gates: Ints, place: int, now: int) -> int:
    shared = max(gates[table[GROUP_GATE, place]], gates[table[RANK_GATE, place]])
    cycle: int = max(table[OWN_FROM, place], shared, now)
    return cycle


@inlined
def _choice_at(table: Ints, gates: Ints, place: int, now: int) -> int:
    wait = _first_cycle(table, gates, place, now) - now
    return (wait << WAIT_SHIFT) | int(table[AGE, place])


@inlined
def _compare(table: Ints, gates: Ints, best: Ints, place: int, kind: int, now: int) -> None:
    """A new candidate with the best of its class, where that is known."""
    cycle, known = _first_cycle(table, gates, place, now), best[kind, BEST_CYCLE]
    if cycle < known or (cycle == known and table[AGE, place] < best[kind, BEST_AGE]):
        _write(table, best, place, kind, cycle)


@inlined
def _write(table: Ints, best: Ints, place: int, kind: int, cycle: int) -> None:
    best[kind, BEST_CYCLE] = cycle
    best[kind, BEST_AGE] = table[AGE, place]
    best[kind, BEST_BANK] = table[BANK, place]
    best[kind, BEST_COMMAND] = table[COMMAND, place]


@inlined
def choose(
    banks: Records, gates: Ints, table: Ints, sizes: Ints, best: Ints, refreshing: int, now: int
) -> int:
    """The class of the best candidate, from cycle `now` on. `refreshing` has a bit for each rank
    whose refresh is due: it takes no requests."""
    if best[HIT, BEST_CYCLE] < now:
        _choose(banks, gates, table, sizes, best, HIT, refreshing, now)
    if best[MISS, BEST_CYCLE] < now:
        _choose(banks, gates, table, sizes, best, MISS, refreshing, now)
    return HIT if best[HIT, BEST_CYCLE] <= best[MISS, BEST_CYCLE] else MISS


@inlined
def _choose(
    banks: Records,
    gates: Ints,
    table: Ints,
    sizes: Ints,
    best: Ints,
    kind: int,
    refreshing: int,
    now: int,
) -> None:
    soonest, place = NOTHING, NONE
    first = kind * len(banks)
    if refreshing:
        for i in range(first, first + sizes[kind]):
            if not (refreshing >> banks[table[BANK, i]].rank) & 1:
                choice = _choice_at(table, gates, i, now)
                if choice < soonest:
                    soonest, place = choice, i
    else:
        for i in range(first, first + sizes[kind]):
            choice = _choice_at(table, gates, i, now)
            if choice < soonest:
                soonest, place = choice, i
    if place == NONE:
        best[kind, BEST_CYCLE], best[kind, BEST_BANK] = NEVER, NONE
    else:
        _write(table, best, place, kind, now + (soonest >> WAIT_SHIFT))
