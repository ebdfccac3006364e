"""The closed loop, compiled: requests arrive while fewer than W are in flight, commands are issued
one after another, and time jumps from one to the next.

A request arrives in the cycle in which another's data are complete (the first W in cycle 0), and
can cause a command from the cycle after. Reads complete in the order of their commands and so do
writes, so two rings hold the completions to come.
"""

from __future__ import annotations

from moesaic.machines.sim.dram.bank_state import NONE, Ints, Records
from moesaic.machines.sim.dram.candidates import (
    BEST_BANK,
    BEST_COMMAND,
    BEST_CYCLE,
    HIT,
    MISS,
    choose,
    forget,
    update,
)
from moesaic.machines.sim.dram.commands import PRE
from moesaic.machines.sim.dram.compiled import compiled, inlined
from moesaic.machines.sim.dram.issue import around, issue_choice, issue_refresh
from moesaic.machines.sim.dram.refresh import NEVER, choose_refresh, next_due, ranks_due
from moesaic.machines.sim.dram.timing import Rules
from moesaic.machines.sim.dram.waiting import append

BANK, ROW, WRITE = range(3)  # columns of the requests; banks count over the whole sub-channel


@compiled
def run(
    banks: Records,
    ranks: Records,
    gates: Ints,
    bus: Records,
    slots: Records,
    table: Ints,
    places: Ints,
    sizes: Ints,
    best: Ints,
    loop: Records,
    rings: Ints,
    requests: Ints,
    trace: Ints,
    rules: Rules,
    shared_bus: bool,
) -> None:
    """Serve all requests; the results stand in `loop`."""
    refreshing, due = 0, next_due(ranks, 0)
    now = bus[0].command_from
    for _ in range(rings.shape[1]):
        _arrive(
            banks, gates, slots, table, places, sizes, best, loop, requests, 0, refreshing, now
        )  # fmt: skip
    while loop[0].served < len(requests):
        if due <= now:
            refreshing = ranks_due(ranks, now)
            due = next_due(ranks, refreshing)
            forget(best, HIT)
            forget(best, MISS)
        refresh_cycle, rank, to_close = NEVER, NONE, NONE
        if refreshing:
            refresh_cycle, rank, to_close = choose_refresh(banks, ranks, refreshing, now)
        kind = _choose_with_arrivals(
            banks, gates, slots, table, places, sizes, best, loop, rings, requests, refreshing,
            now, min(due, refresh_cycle),
        )  # fmt: skip
        cycle = best[kind, BEST_CYCLE]
        if due <= min(cycle, refresh_cycle):
            now = due
            continue
        if refresh_cycle <= cycle:
            bank = to_close
            issue_refresh(banks, ranks, gates, bus, loop, trace, rules, rank, bank, refresh_cycle)
            refreshing = ranks_due(ranks, refresh_cycle)
            due = next_due(ranks, refreshing)
            forget(best, HIT)
            forget(best, MISS)
        else:
            bank, command = best[kind, BEST_BANK], best[kind, BEST_COMMAND]
            issue_choice(
                banks, ranks, gates, bus, slots, loop, rings, trace, rules, shared_bus,
                bank, command, cycle,
            )  # fmt: skip
            if command != PRE:  # no gate of other banks depends on it
                forget(best, kind)
        now = bus[0].command_from
        if bank != NONE:
            update(banks, gates, slots, table, places, sizes, best, bank, refreshing, now)


@inlined
def _choose_with_arrivals(
    banks: Records,
    gates: Ints,
    slots: Records,
    table: Ints,
    places: Ints,
    sizes: Ints,
    best: Ints,
    loop: Records,
    rings: Ints,
    requests: Ints,
    refreshing: int,
    now: int,
    horizon: int,
) -> int:
    """The class of the best candidate, after every arrival that could change it."""
    arrival = _next_arrival(loop, rings, requests)
    while arrival < now:
        _replace(
            banks, gates, slots, table, places, sizes, best, loop, rings, requests, arrival,
            refreshing, now,
        )  # fmt: skip
        arrival = _next_arrival(loop, rings, requests)
    kind = choose(banks, gates, table, sizes, best, refreshing, now)
    while arrival < min(best[kind, BEST_CYCLE], horizon):
        now = arrival + 1
        _replace(
            banks, gates, slots, table, places, sizes, best, loop, rings, requests, arrival,
            refreshing, now,
        )  # fmt: skip
        kind = choose(banks, gates, table, sizes, best, refreshing, now)
        arrival = _next_arrival(loop, rings, requests)
    return kind


@inlined
def _next_arrival(loop: Records, rings: Ints, requests: Ints) -> int:
    """The next completion that lets a request in; NEVER when all have arrived."""
    state = loop[0]
    soonest = NEVER
    if state.arrived < len(requests):
        if state.reading:
            soonest = rings[0, state.read_head]
        if state.writing:
            soonest = min(soonest, rings[1, state.write_head])
    return soonest


@inlined
def _replace(
    banks: Records,
    gates: Ints,
    slots: Records,
    table: Ints,
    places: Ints,
    sizes: Ints,
    best: Ints,
    loop: Records,
    rings: Ints,
    requests: Ints,
    cycle: int,
    refreshing: int,
    now: int,
) -> None:
    """One request completes and the next arrives."""
    state = loop[0]
    if state.reading and rings[0, state.read_head] == cycle:
        state.reading -= 1
        state.read_head = around(state.read_head + 1, rings.shape[1])
    else:
        state.writing -= 1
        state.write_head = around(state.write_head + 1, rings.shape[1])
    _arrive(
        banks, gates, slots, table, places, sizes, best, loop, requests, cycle, refreshing, now
    )  # fmt: skip


@inlined
def _arrive(
    banks: Records,
    gates: Ints,
    slots: Records,
    table: Ints,
    places: Ints,
    sizes: Ints,
    best: Ints,
    loop: Records,
    requests: Ints,
    cycle: int,
    refreshing: int,
    now: int,
) -> None:
    """Let requests arrive in `cycle`; they can cause a command from `now` on."""
    request = loop[0].arrived
    loop[0].arrived += 1
    bank: int = requests[request, BANK]
    slot = append(
        banks, slots, loop, bank, request, requests[request, ROW], requests[request, WRITE]
    )
    slots[slot].arrived = cycle
    update(banks, gates, slots, table, places, sizes, best, bank, refreshing, now)
