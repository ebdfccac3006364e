"""FR-FCFS with an open-row policy, compiled: which command comes next, and in which cycle.

Of the commands that can be issued first, refreshing comes first (`refresh.py`), then a column
command of a row hit, then ACT and PRE; among equals the oldest request decides. A row with
waiting hits is not closed.
"""

from __future__ import annotations

from moesaic.machines.sim.dram.bank_state import CLOSED, NONE, Ints, Records
from moesaic.machines.sim.dram.compiled import inlined
from moesaic.machines.sim.dram.rules import act_from, rd_from, wr_from
from moesaic.machines.sim.dram.waiting import ACTIVE_BANK, BOUND

# A choice is one number, the smaller the sooner: cycles to wait, then hits first, then age.
AGE_BITS = 40
MISS = 1 << AGE_BITS
WAIT_SHIFT = AGE_BITS + 1
NOTHING = (1 << 62) - 1  # waits longer than any command


@inlined
def wait_of(choice: int) -> int:
    return choice >> WAIT_SHIFT


@inlined
def is_hit(choice: int) -> bool:
    return (choice & MISS) == 0


@inlined
def age_of(choice: int) -> int:
    return choice & (MISS - 1)


@inlined
def choice_of_bank(
    banks: Records, groups: Records, ranks: Records, slots: Records, bank: int, now: int
) -> int:
    """The command a bank with waiting requests would get, from cycle `now` on."""
    b = banks[bank]
    if b.open_row == CLOSED:
        wait = max(act_from(banks, groups, ranks, bank) - now, 0)
        return (wait << WAIT_SHIFT) | MISS | slots[b.first].request
    choice = NOTHING
    if b.hit_rd != NONE:
        wait = max(rd_from(banks, groups, ranks, bank) - now, 0)
        choice = (wait << WAIT_SHIFT) | slots[b.hit_rd].request
    if b.hit_wr != NONE:
        wait = max(wr_from(banks, groups, ranks, bank) - now, 0)
        choice = min(choice, (wait << WAIT_SHIFT) | slots[b.hit_wr].request)
    if choice == NOTHING:
        wait = max(b.pre_from - now, 0)
        choice = (wait << WAIT_SHIFT) | MISS | slots[b.first].request
    return choice


@inlined
def choose(
    banks: Records,
    groups: Records,
    ranks: Records,
    slots: Records,
    active: Ints,
    count: int,
    refreshing: int,
    now: int,
) -> tuple[int, int]:
    """The best choice over the first `count` active banks, with its bank. `refreshing` has a bit
    for each rank whose refresh is due: it takes no requests."""
    best, best_bank, best_cycle = NOTHING, NONE, now + wait_of(NOTHING)
    for i in range(count):
        if active[i, BOUND] > best_cycle:
            continue
        bank = active[i, ACTIVE_BANK]
        if refreshing and (refreshing >> banks[bank].rank) & 1:
            continue
        choice = choice_of_bank(banks, groups, ranks, slots, bank, now)
        active[i, BOUND] = now + wait_of(choice)
        if choice < best:
            best, best_bank, best_cycle = choice, bank, now + wait_of(choice)
    return best, best_bank
