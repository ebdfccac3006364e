"""All-bank refresh, compiled: one REF per rank and nREFI, ahead of every request.

From the cycle in which it falls due, a rank takes no ACT, RD or WR; its open banks are precharged
one by one as their rules allow, then REF follows. Other ranks go on.
"""

from __future__ import annotations

from moesaic.machines.sim.dram.bank_state import CLOSED, NONE, Records
from moesaic.machines.sim.dram.compiled import inlined

NEVER = 1 << 62


@inlined
def next_due(ranks: Records, refreshing: int) -> int:
    """The first cycle at which another rank's refresh falls due."""
    soonest = NEVER
    for rank in range(len(ranks)):
        if not (refreshing >> rank) & 1:
            soonest = min(soonest, ranks[rank].due)
    return soonest


@inlined
def ranks_due(ranks: Records, now: int) -> int:
    """A bit for each rank whose refresh is due."""
    found = 0
    for rank in range(len(ranks)):
        if ranks[rank].due <= now:
            found |= 1 << rank
    return found


@inlined
def choose_refresh(
    banks: Records, ranks: Records, refreshing: int, now: int
) -> tuple[int, int, int]:
    """(cycle, rank, bank to precharge or NONE for REF): the soonest, then the first rank, then
    the first bank."""
    cycle, chosen, to_close = NEVER, NONE, NONE
    per_rank = len(banks) // len(ranks)
    for rank in range(len(ranks)):
        if not (refreshing >> rank) & 1:
            continue
        if ranks[rank].open_banks == 0:
            at = max(ranks[rank].ref_from, now)
            if at < cycle:
                cycle, chosen, to_close = at, rank, NONE
            continue
        for bank in range(rank * per_rank, (rank + 1) * per_rank):
            at = max(banks[bank].pre_from, now)
            if banks[bank].open_row != CLOSED and at < cycle:
                cycle, chosen, to_close = at, rank, bank
    return cycle, chosen, to_close
