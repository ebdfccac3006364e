"""The closed loop, compiled: requests arrive while fewer than W are in flight, commands are issued
one after another, and time jumps from one to the next.

A request arrives in the cycle in which another's data are complete (the first W in cycle 0), and
can cause a command from the cycle after. Reads complete in the order of their commands and so do
writes, so two rings hold the completions to come.
"""

from __future__ import annotations

from moesaic.machines.sim.dram.bank_state import NONE, Ints, Records
from moesaic.machines.sim.dram.candidates import COMMAND as CANDIDATE_COMMAND
from moesaic.machines.sim.dram.candidates import WAIT_SHIFT, choice_at, choose, update, wait_of
from moesaic.machines.sim.dram.compiled import compiled, inlined
from moesaic.machines.sim.dram.issue import issue_choice, issue_refresh
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
    loop: Records,
    rings: Ints,
    requests: Ints,
    trace: Ints,
    rules: Rules,
    shared_bus: bool,
) -> None:
    """Serve all requests; the results stand in `loop`."""
    for _ in range(rings.shape[1]):
        _arrive(banks, slots, table, places, loop, requests, 0)
    refreshing, due = 0, next_due(ranks, 0)
    now = bus[0].command_from
    while loop[0].served < len(requests):
        if due <= now:
            refreshing = ranks_due(ranks, now)
            due = next_due(ranks, refreshing)
        refresh_cycle, rank, to_close = NEVER, NONE, NONE
        if refreshing:
            refresh_cycle, rank, to_close = choose_refresh(banks, ranks, refreshing, now)
        horizon = min(due, refresh_cycle)
        choice, bank, command, now = _choose_with_arrivals(
            banks, gates, slots, table, places, loop, rings, requests, refreshing, now, horizon
        )
        cycle = now + wait_of(choice)
        if due <= min(cycle, refresh_cycle):
            now = due
            continue
        if refresh_cycle <= cycle:
            bank = to_close
            issue_refresh(banks, ranks, gates, bus, loop, trace, rules, rank, bank, refresh_cycle)
            refreshing = ranks_due(ranks, refresh_cycle)
            due = next_due(ranks, refreshing)
        else:
            issue_choice(
                banks, ranks, gates, bus, slots, loop, rings, trace, rules, shared_bus,
                bank, command, cycle,
            )  # fmt: skip
        if bank != NONE:
            update(banks, slots, table, places, loop, bank)
        now = bus[0].command_from


@inlined
def _choose_with_arrivals(
    banks: Records,
    gates: Ints,
    slots: Records,
    table: Ints,
    places: Ints,
    loop: Records,
    rings: Ints,
    requests: Ints,
    refreshing: int,
    now: int,
    horizon: int,
) -> tuple[int, int, int, int]:
    """(choice, bank, command, the cycle the choice's wait counts from), after every arrival that
    could change it. Only the newcomer's bank is looked at again: no other comes sooner."""
    arrival = _next_arrival(loop, rings, requests)
    while arrival < now:
        _replace(banks, slots, table, places, loop, rings, requests, arrival)
        arrival = _next_arrival(loop, rings, requests)
    choice, bank, command = choose(banks, gates, table, loop[0].candidates, refreshing, now)
    while arrival < min(now + wait_of(choice), horizon):
        newcomer = _replace(banks, slots, table, places, loop, rings, requests, arrival)
        if newcomer == bank:  # what it wanted may no longer be wanted
            now = arrival + 1
            choice, bank, command = choose(banks, gates, table, loop[0].candidates, refreshing, now)
        elif not (refreshing >> banks[newcomer].rank) & 1:
            for which in range(2):
                place = places[newcomer, which]
                if place != NONE:
                    other = choice_at(table, gates, place, arrival + 1)
                    other += (arrival + 1 - now) << WAIT_SHIFT
                    if other < choice:
                        choice, bank, command = other, newcomer, table[place, CANDIDATE_COMMAND]
        arrival = _next_arrival(loop, rings, requests)
    return choice, bank, command, now


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
    slots: Records,
    table: Ints,
    places: Ints,
    loop: Records,
    rings: Ints,
    requests: Ints,
    cycle: int,
) -> int:
    """One request completes and the next arrives; returns the newcomer's bank."""
    state = loop[0]
    if state.reading and rings[0, state.read_head] == cycle:
        state.reading -= 1
        state.read_head = (state.read_head + 1) % rings.shape[1]
    else:
        state.writing -= 1
        state.write_head = (state.write_head + 1) % rings.shape[1]
    return _arrive(banks, slots, table, places, loop, requests, cycle)


@inlined
def _arrive(
    banks: Records,
    slots: Records,
    table: Ints,
    places: Ints,
    loop: Records,
    requests: Ints,
    cycle: int,
) -> int:
    request = loop[0].arrived
    loop[0].arrived += 1
    bank: int = requests[request, BANK]
    slot = append(
        banks, slots, loop, bank, request, requests[request, ROW], requests[request, WRITE]
    )
    slots[slot].arrived = cycle
    update(banks, slots, table, places, loop, bank)
    return bank
