"""How much slower the CPU is while the link copies: both read the same memory.

Other programs disturb a single measurement by more than the copies do. So the CPU works without
pause, alone and beside copies in turns; what counts is the median over the turns of one against
the other, and a turn beside copies counts only if they outlasted it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

from moesaic.core.units import nonzero_slowdown, slowed_by
from moesaic.machines.real.device_slots import DeviceSlots
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.streams import Mark, Streams

ROUNDS = 9
_TURN_NS = 3_000_000  # at least
_CALLS = 5  # of a turn, at least
_MARGIN = 2  # copies are submitted for so many times as long as the turn should take
_ATTEMPTS = 3  # to outlast a turn, each with twice the copies
_SOURCES = 16
_MOST = 4000  # copies at once: what was submitted cannot be recalled


class LinkCopies:
    """Copies of experts that run beside something else; `copy_ns` is what one takes."""

    def __init__(
        self, store: ExpertStore, slots: DeviceSlots, streams: Streams, copy_ns: int
    ) -> None:
        self._streams, self._copy_ns = streams, max(copy_ns, 1)
        self._target = slots.staging().block
        self._sources = store.some_blocks(_SOURCES)

    def start(self, duration_ns: int) -> Mark:
        """Start copies for about so long; return the event at their end."""
        count = min(duration_ns // self._copy_ns + 1, _MOST)
        self._streams.copy_again(self._target, self._sources, count)
        return self._streams.copy(self._target, self._sources[0], None)[1]

    def finish(self) -> None:
        self._streams.synchronize()


def slowdown(call: Callable[[], None], copies: LinkCopies, rounds: int = ROUNDS) -> int:
    """Thousandths that one call takes longer beside copies."""
    call()
    calls = max(_CALLS, _TURN_NS // max(_turn(call, _CALLS), 1))
    found = []
    for _ in range(rounds):
        alone = _turn(call, calls)
        beside = _beside(call, calls, copies, _MARGIN * calls * alone)
        found.append(slowed_by(alone, beside))
    return nonzero_slowdown(round(median(found)))


def _turn(call: Callable[[], None], calls: int) -> int:
    """Nanoseconds of the median call."""
    taken = []
    for _ in range(calls):
        started = perf_counter_ns()
        call()
        taken.append(perf_counter_ns() - started)
    return round(median(taken))


def _beside(call: Callable[[], None], calls: int, copies: LinkCopies, duration_ns: int) -> int:
    beside = 0
    for _ in range(_ATTEMPTS):
        ended = copies.start(duration_ns)
        beside = _turn(call, calls)
        outlasted = not ended.ended()
        copies.finish()
        if outlasted:
            break
        duration_ns *= 2
    return beside
