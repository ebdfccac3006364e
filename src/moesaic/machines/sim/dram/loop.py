"""The closed loop, compiled: requests arrive while fewer than W are in flight, commands are issued
one after another, and time jumps from one to the next.

A request arrives in the cycle in which another's data are complete (the first W in cycle 0), and
can cause a command from the cycle after. Reads complete in the order of their commands and so do
writes, so two rings hold the completions to come.
"""

from __future__ import annotations

from moesaic.machines.sim.dram.bank_state import NONE, Ints, Records
from moesaic.machines.sim.dram.compiled import compiled, inlined
from moesaic.machines.sim.dram.issue import issue_choice, issue_refresh
from moesaic.machines.sim.dram.refresh import NEVER, choose_refresh, next_due, ranks_due
from moesaic.machines.sim.dram.scheduler import WAIT_SHIFT, choice_of_bank, choose, wait_of
from moesaic.machines.sim.dram.timing import Rules
from moesaic.machines.sim.dram.waiting import append

BANK, ROW, WRITE = range(3)  # columns of the requests; banks count over the whole sub-channel


@compiled
def run(
    banks: Records,
    groups: Records,
    ranks: Records,
    bus: Records,
    slots: Records,
    active: Ints,
    loop: Records,
    rings: Ints,
    requests: Ints,
    trace: Ints,
    rules: Rules,
    shared_bus: bool,
) -> None:
    """Serve all requests; the results stand in `loop`."""
    for _ in range(rings.shape[1]):
        _arrive(banks, slots, active, loop, requests, 0)
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
        choice, bank, now = _choose_with_arrivals(
            banks, groups, ranks, slots, active, loop, rings, requests, refreshing, now, horizon
        )
        cycle = now + wait_of(choice)
        if due <= min(cycle, refresh_cycle):
            now = due
            continue
        if refresh_cycle <= cycle:
            issue_refresh(
                banks, ranks, bus, active, loop, trace, rules, rank, to_close, refresh_cycle
            )
            refreshing = ranks_due(ranks, refresh_cycle)
            due = next_due(ranks, refreshing)
        else:
            issue_choice(
                banks, groups, ranks, bus, slots, active, loop, rings, trace, rules, shared_bus,
                choice, bank, cycle,
            )  # fmt: skip
        now = bus[0].command_from


@inlined
def _choose_with_arrivals(
    banks: Records,
    groups: Records,
    ranks: Records,
    slots: Records,
    active: Ints,
    loop: Records,
    rings: Ints,
    requests: Ints,
    refreshing: int,
    now: int,
    horizon: int,
) -> tuple[int, int, int]:
    """(choice, its bank, the cycle its wait counts from), after every arrival that could change
    it. Only the newcomer's bank is looked at again: no other bank's command comes sooner."""
    arrival = _next_arrival(loop, rings, requests)
    while arrival < now:
        _replace(banks, slots, active, loop, rings, requests, arrival)
        arrival = _next_arrival(loop, rings, requests)
    choice, bank = choose(banks, groups, ranks, slots, active, loop[0].active, refreshing, now)
    while arrival < min(now + wait_of(choice), horizon):
        newcomer = _replace(banks, slots, active, loop, rings, requests, arrival)
        if newcomer == bank:
            now = arrival + 1
            choice, bank = choose(
                banks, groups, ranks, slots, active, loop[0].active, refreshing, now
            )
        elif not (refreshing >> banks[newcomer].rank) & 1:
            other = choice_of_bank(banks, groups, ranks, slots, newcomer, arrival + 1)
            other += (arrival + 1 - now) << WAIT_SHIFT
            if other < choice:
                choice, bank = other, newcomer
        arrival = _next_arrival(loop, rings, requests)
    return choice, bank, now


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
    active: Ints,
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
    return _arrive(banks, slots, active, loop, requests, cycle)


@inlined
def _arrive(
    banks: Records, slots: Records, active: Ints, loop: Records, requests: Ints, cycle: int
) -> int:
    request = loop[0].arrived
    loop[0].arrived += 1
    bank = requests[request, BANK]
    slot = append(
        banks, slots, active, loop, bank, request, requests[request, ROW], requests[request, WRITE]
    )
    slots[slot].arrived = cycle
    return bank
