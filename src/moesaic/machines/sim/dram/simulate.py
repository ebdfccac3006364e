"""The library call: serve a pattern on one sub-channel, and say how long it took."""

from __future__ import annotations

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from moesaic.machines.sim.dram.bank_state import Ints, Records, fresh_state
from moesaic.machines.sim.dram.candidates import no_candidates
from moesaic.machines.sim.dram.commands import TRACE_COLUMNS
from moesaic.machines.sim.dram.issue import fresh_loop
from moesaic.machines.sim.dram.loop import run
from moesaic.machines.sim.dram.pattern import Pattern, check_pattern
from moesaic.machines.sim.dram.refresh import NEVER
from moesaic.machines.sim.dram.result import DramResult
from moesaic.machines.sim.dram.timing import Timing
from moesaic.machines.sim.dram.waiting import free_slots

IN_FLIGHT = 32


def simulate(
    timing: Timing,
    pattern: Pattern,
    in_flight: int = IN_FLIGHT,
    *,
    refresh: bool = True,
    shared_bus: bool = True,
) -> DramResult:
    """Serve `pattern` with at most `in_flight` requests between arrival and complete data.

    `shared_bus`: all ranks share one data bus (a host's sub-channel). Otherwise every rank has its
    own, and only the command bus is shared."""
    loop, _ = _run(timing, pattern, in_flight, refresh, shared_bus, trace_room=0)
    return _result(timing, len(pattern), loop)


def command_trace(
    timing: Timing,
    pattern: Pattern,
    in_flight: int = IN_FLIGHT,
    *,
    refresh: bool = True,
    shared_bus: bool = True,
) -> tuple[DramResult, Ints]:
    """The result with every command in order; columns as in `commands.py`."""
    room = 4 * len(pattern) + 64
    loop, trace = _run(timing, pattern, in_flight, refresh, shared_bus, room)
    needed = int(loop["commands"])
    if needed > room:
        loop, trace = _run(timing, pattern, in_flight, refresh, shared_bus, needed)
    return _result(timing, len(pattern), loop), trace[:needed]


def _run(
    timing: Timing,
    pattern: Pattern,
    in_flight: int,
    refresh: bool,
    shared_bus: bool,
    trace_room: int,
) -> tuple[Records, Ints]:
    if in_flight < 1:
        raise ImpossibleSetting(
            f"{in_flight} requests in flight: nothing would ever be read; expected 1 or more"
        )
    geometry = timing.geometry
    check_pattern(pattern, geometry)
    state = fresh_state(geometry)
    state.ranks["due"] = timing.rules.nrefi if refresh else NEVER
    slots = min(in_flight, len(pattern))
    loop, rings = fresh_loop(slots)
    requests = np.stack([pattern.global_bank(geometry), pattern.row, pattern.write], axis=1)
    trace = np.zeros((trace_room, TRACE_COLUMNS), np.int64)
    run(
        *state,
        free_slots(slots),
        *no_candidates(len(state.banks)),
        loop,
        rings,
        requests,
        trace,
        timing.rules,
        shared_bus,
    )
    return loop[0], trace


def _result(timing: Timing, requests: int, loop: Records) -> DramResult:
    return DramResult(
        timing=timing,
        requests=requests,
        cycles=int(loop["cycles"]),
        latency_nck=int(loop["latency"]) / requests,
        hit_rate=int(loop["hits"]) / requests,
        commands=int(loop["commands"]),
    )
