"""Requests that have arrived and wait for their RD or WR, per bank in order of arrival; compiled.

Slots (as many as requests may be in flight) form one doubly linked list per bank. A bank also
knows its hits, the oldest waiting read and write of its open row, so that choosing a command looks
at banks, not at requests.
"""

from __future__ import annotations

import numpy as np

from moesaic.machines.sim.dram.bank_state import NONE, Records, record, records
from moesaic.machines.sim.dram.compiled import inlined

_SLOT = record(
    request=NONE,  # its place in the pattern, which is its age
    row=NONE,
    write=0,
    arrived=0,  # cycle
    missed=0,  # 1 if it needed an ACT
    after=NONE,  # the next younger of the bank
    before=NONE,  # the next older of the bank
    free=NONE,  # entry i of the stack of unused slots: of slot i no property
)


def free_slots(count: int) -> Records:
    slots = records(count, _SLOT)
    slots["free"] = np.arange(count)
    return slots


@inlined
def append(
    banks: Records,
    slots: Records,
    loop: Records,
    bank: int,
    request: int,
    row: int,
    write: int,
) -> int:
    """A request arrives; returns its slot."""
    b, sizes = banks[bank], loop[0]
    sizes.free -= 1
    slot: int = slots[sizes.free].free
    s = slots[slot]
    s.request, s.row, s.write, s.missed = request, row, write, 0
    s.after, s.before = NONE, b.last
    if b.last == NONE:
        b.first = slot
    else:
        slots[b.last].after = slot
    b.last = slot
    if write:
        b.writes += 1
        if row == b.open_row and b.hit_wr == NONE:
            b.hit_wr = slot
    else:
        b.reads += 1
        if row == b.open_row and b.hit_rd == NONE:
            b.hit_rd = slot
    return slot


@inlined
def remove_hit(banks: Records, slots: Records, loop: Records, bank: int, slot: int) -> None:
    """The oldest hit of its kind is served: the next one takes its place."""
    b, s, sizes = banks[bank], slots[slot], loop[0]
    if s.write:
        b.writes -= 1
        b.hit_wr = _next_of_row(slots, b.writes, s.after, s.row, 1)
    else:
        b.reads -= 1
        b.hit_rd = _next_of_row(slots, b.reads, s.after, s.row, 0)
    if s.before == NONE:
        b.first = s.after
    else:
        slots[s.before].after = s.after
    if s.after == NONE:
        b.last = s.before
    else:
        slots[s.after].before = s.before
    slots[sizes.free].free = slot
    sizes.free += 1


@inlined
def row_opens(banks: Records, slots: Records, bank: int) -> None:
    b = banks[bank]
    b.hit_rd = _next_of_row(slots, b.reads, b.first, b.open_row, 0)
    b.hit_wr = _next_of_row(slots, b.writes, b.first, b.open_row, 1)


@inlined
def row_closes(banks: Records, bank: int) -> None:
    banks[bank].hit_rd = NONE
    banks[bank].hit_wr = NONE


@inlined
def _next_of_row(slots: Records, waiting: int, slot: int, row: int, write: int) -> int:
    """The first request of this row and kind from `slot` on; `waiting` of the kind are in the
    bank."""
    if waiting == 0:
        return NONE
    while slot != NONE and (slots[slot].row != row or slots[slot].write != write):
        slot = slots[slot].after
    return slot
