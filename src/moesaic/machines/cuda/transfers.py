"""Copies of experts to the device: what is there, what is under way, what may be brought in idle
link time. All bookkeeping is of the thread that drives the step.

A background copy is submitted when few are under way: what is not submitted when the next layer is
routed is dropped, and what a layer demands waits only for those few."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from moesaic.core.layer_plan import Move
from moesaic.core.offloading import PCIE
from moesaic.core.report import Span, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.core.view import FLIGHT_CAPACITY, Flight
from moesaic.machines.cuda.slots import DeviceSlot, DeviceSlots
from moesaic.machines.cuda.streams import Mark, Streams
from moesaic.machines.real.expert_store import ExpertStore

AHEAD = 2  # background copies under way at once: the link does not idle between two
_EXPECTED_GB_S = 20  # of the link, until it has been measured


@dataclass(slots=True, eq=False)
class DeviceCopy:
    """One expert under way; `start_ns` is when the link was free for it, as far as was seen."""

    move: Move
    slot: DeviceSlot
    kind: str  # "transfer" | "prefetch", as in a timeline
    start_ns: int
    begun: Mark
    arrived: Mark


class DeviceTransfers:
    def __init__(
        self,
        store: ExpertStore,
        slots: DeviceSlots,
        residency: Residency,
        streams: Streams,
        timeline: Timeline,
    ) -> None:
        self.bytes_moved = 0
        self.duration_ns = store.kernel.block_bytes // _EXPECTED_GB_S  # of one copy
        self._store, self._slots, self._residency = store, slots, residency
        self._streams, self._timeline = streams, timeline
        self._in_flight: deque[DeviceCopy] = deque()  # not seen to have arrived
        self._offered: deque[Move] = deque()  # not submitted

    def place(self, experts: Sequence[ExpertId]) -> None:
        """The initial placement; waits for it, and before for whatever the slots' memory was used
        for: the stream that copies does not know of it."""
        self._streams.synchronize()
        self._residency.place(list(experts))
        for layer, expert in experts:
            move = Move(layer, expert)
            self._submit(move, self._slots.enter(move), "transfer")
        self._streams.synchronize()

    def poll(self) -> None:
        """Note what has arrived, and go on with what was offered."""
        self._note_arrivals()
        while self._offered and len(self._in_flight) < AHEAD:
            move = self._offered.popleft()
            self._begin(move, self._slots.enter(move), "prefetch")

    def offer(self, moves: Sequence[Move]) -> None:
        """What may move in idle link time."""
        self._offered.extend(moves)
        self.poll()

    def cancel_background(self) -> None:
        """No new copy begins from now on, until one is demanded or offered."""
        self._offered.clear()
        self._note_arrivals()

    def demand(self, moves: Sequence[Move]) -> list[DeviceCopy]:
        """Begin what a layer waits for. Everything that reads the staging slots they get must have
        been submitted."""
        return [self._demanded(move) for move in moves]

    def coming(self, layer: int) -> dict[int, DeviceCopy]:
        """Copies under way to this layer, by expert."""
        return {copy.move.expert: copy for copy in self._in_flight if copy.move.layer == layer}

    def in_flight(self) -> tuple[Flight, ...]:
        now, ready = perf_counter_ns(), 0
        found: list[Flight] = []
        for copy in self._in_flight:
            ready = ready + self.duration_ns if found else copy.start_ns + self.duration_ns - now
            ready = max(ready, 1)
            found.append(Flight(copy.move.layer, copy.move.expert, ready))
        return tuple(found)

    def to_slots(self, flights: Sequence[Flight], layer: int) -> tuple[Flight, ...]:
        """Those that end in a slot, and not in a staging slot. Where there are more than a view may
        name, those to this layer and later ones come first."""
        kept = {(c.move.layer, c.move.expert) for c in self._in_flight if c.move.keep}
        stay = [flight for flight in flights if (flight.layer, flight.expert) in kept]
        if len(stay) > FLIGHT_CAPACITY:
            stay.sort(key=lambda flight: flight.layer < layer)
        return tuple(stay[:FLIGHT_CAPACITY])

    def settle(self) -> None:
        """Nothing is under way afterwards; what was only offered is dropped."""
        self._offered.clear()
        self._streams.synchronize()
        self._note_arrivals()

    def reset(self) -> None:
        """After an interruption, which may have come between any two lines: let what was submitted
        end, and rebuild residency from what is in memory."""
        self._streams.synchronize()
        self._in_flight, self._offered = deque(), deque()
        self._residency.clear()
        self._residency.place(self._slots.rebuild())

    def _demanded(self, move: Move) -> DeviceCopy:
        if move.keep:
            return self._begin(move, self._slots.enter(move), "transfer")
        if move.victim is not None:
            self._slots.leave(move.victim)
        return self._begin(move, self._slots.staging(), "transfer")

    def _begin(self, move: Move, slot: DeviceSlot, kind: str) -> DeviceCopy:
        self._residency.start(move)
        copy = self._submit(move, slot, kind)
        self.bytes_moved += self._store.kernel.block_bytes
        self._in_flight.append(copy)
        return copy

    def _submit(self, move: Move, slot: DeviceSlot, kind: str) -> DeviceCopy:
        """`holds` is None while it is uncertain whether the copy was submitted."""
        slot.holds = None
        source = self._store.block(move.layer, move.expert)
        begun, arrived = self._streams.copy(slot.block, source, slot.read)
        slot.holds = ExpertId(move.layer, move.expert)
        return DeviceCopy(move, slot, kind, perf_counter_ns(), begun, arrived)

    def _note_arrivals(self) -> None:
        while self._in_flight and self._in_flight[0].arrived.ended():
            copy = self._in_flight.popleft()
            self._residency.complete(copy.move)
            if self._in_flight:
                self._in_flight[0].start_ns = perf_counter_ns()
            if self._timeline.enabled:
                self._record(copy)

    def _record(self, copy: DeviceCopy) -> None:
        begin, end = (self._streams.time_ns(mark) for mark in (copy.begun, copy.arrived))
        move = copy.move
        self._timeline.add(Span(PCIE, copy.kind, begin, end, move.layer, move.expert, 0))
