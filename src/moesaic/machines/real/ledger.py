"""What is in an accelerator's memory and what is under way to it, written down once by the thread
that drives a pass, whatever copies the experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

from moesaic.core.layer_plan import Move
from moesaic.core.offloading import PCIE
from moesaic.core.report import Span, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.core.under_way import UnderWay
from moesaic.core.view import FLIGHT_CAPACITY, Flight
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.slot_table import Slot, SlotTable


class Copying(Protocol):
    """One expert on its way into a slot."""

    move: Move
    kind: str  # "transfer" | "prefetch", as in a timeline
    start_ns: int  # when the link was free for it, as far as was seen

    @property
    def started(self) -> bool: ...

    def ended(self) -> bool:
        """Whether it has arrived; raises what went wrong."""
        ...

    def follow(self) -> None:
        """The copy in front of it was seen to have arrived."""
        ...


CopyT = TypeVar("CopyT", bound=Copying)


class Copier(Protocol[CopyT]):
    """Copies experts one after the other, demanded ones first. It never writes the ledger: what it
    has begun and what has arrived is seen when the ledger looks."""

    duration_ns: int  # of one copy alone

    def prepare(self, move: Move, slot: Any, kind: str) -> CopyT:
        """A copy that has not begun, into a slot that is as it will be when it begins."""
        ...

    def place(self, copies: Sequence[CopyT]) -> None:
        """Place at once, after the last use of the slots' memory."""
        ...

    def demand(self, copies: Sequence[CopyT]) -> None:
        """These begin as soon as the link is free, in this order."""
        ...

    def offer(self, copies: Sequence[CopyT]) -> None:
        """These may begin, in this order, while nothing is demanded."""
        ...

    def pump(self, under_way: int) -> None:
        """Begin what was offered, where this needs the calling thread; so many are under way."""
        ...

    def recall(self) -> None:
        """What was offered and has not begun never begins."""
        ...

    def halt(self) -> None:
        """Wait for what has begun; the rest is dropped."""
        ...

    def times_ns(self, copy: CopyT) -> tuple[int, int]:
        """When a copy that has arrived began and ended."""
        ...


class Ledger(Generic[CopyT]):
    """Residency changes in its verbs and nowhere else, so a view never changes during a decision.
    It is lent while another executor moves experts between the same slots by itself."""

    def __init__(
        self,
        store: ExpertStore,
        slots: SlotTable[Any],
        residency: Residency,
        copier: Copier[CopyT],
        timeline: Timeline,
    ) -> None:
        self.residency, self.copier = residency, copier
        self.lent = False
        self._store, self._slots, self._timeline = store, slots, timeline
        self._under_way = UnderWay[CopyT](residency)  # counted, not seen to have arrived
        self._offered: list[CopyT] = []  # not seen to have begun

    @property
    def bytes_moved(self) -> int:
        return self._under_way.bytes_moved

    @property
    def busy_ns(self) -> int:
        """How long copies have taken, each as long as one takes alone."""
        return self.bytes_moved // self._store.kernel.block_bytes * self.copier.duration_ns

    def place(self, experts: Sequence[ExpertId]) -> None:
        """The initial placement: it has arrived when this returns."""
        self.residency.place(list(experts))
        moves = [Move(layer, expert) for layer, expert in experts]
        self.copier.place([self._prepared(move, "transfer") for move in moves])

    def poll(self) -> None:
        """Note what has begun and what has arrived, and let the copier go on."""
        self._note_starts()
        self._note_arrivals()
        self.copier.pump(len(self._under_way))
        self._note_starts()

    def cancel_background(self) -> None:
        """No new copy begins from now on, until one is demanded or offered."""
        self.copier.recall()
        self._note_starts()
        self._note_arrivals()
        self._offered.clear()

    def offer(self, moves: Sequence[Move]) -> None:
        """What may move in idle link time."""
        assert not self.lent, "another executor has the slots"
        slots = self._slots.targets(moves)
        self._offered = [
            self.copier.prepare(move, slot, "prefetch")
            for move, slot in zip(moves, slots, strict=True)
        ]
        self.copier.offer(self._offered)
        self.poll()

    def demand(
        self, moves: Sequence[Move], readers: Mapping[int, Any] | None = None
    ) -> dict[int, CopyT]:
        """Begin what a layer waits for; returns the copies by expert. `readers`: by expert, what
        says that a staging slot was read. Where there is none, everything that reads the staging
        slots must have been submitted."""
        assert not self.lent, "another executor has the slots"
        copies: dict[int, CopyT] = {}
        for move in moves:
            copies[move.expert] = self._prepared(move, "transfer", readers)
            self._under_way.begin(copies[move.expert], self._store.kernel.block_bytes)
        self.copier.demand(list(copies.values()))
        return copies

    def coming(self, layer: int) -> dict[int, CopyT]:
        """Copies under way to this layer, by expert."""
        return {copy.move.expert: copy for copy in self._under_way.to_layer(layer)}

    def in_flight(self) -> tuple[Flight, ...]:
        now, ready = perf_counter_ns(), 0
        duration = self.copier.duration_ns
        found: list[Flight] = []
        for copy in self._under_way:
            ready = max(ready + duration if found else copy.start_ns + duration - now, 1)
            found.append(Flight(copy.move.layer, copy.move.expert, ready))
        return tuple(found)

    def to_slots(self, flights: Sequence[Flight], layer: int) -> tuple[Flight, ...]:
        """Those that end in a slot, and not in a staging slot. Where there are more than a view may
        name, those to this layer and later ones come first."""
        kept = {(c.move.layer, c.move.expert) for c in self._under_way if c.move.keep}
        stay = [flight for flight in flights if (flight.layer, flight.expert) in kept]
        if len(stay) > FLIGHT_CAPACITY:
            stay.sort(key=lambda flight: flight.layer < layer)
        return tuple(stay[:FLIGHT_CAPACITY])

    def lend(self, load: Callable[[list[int]], None]) -> None:
        """Another executor moves experts when this has ended. `load` is given by
        `layer * experts + expert` the expert's slot, or -1."""
        assert not self.lent, "it is lent"
        self.copier.halt()
        self._note_starts()
        self._note_arrivals()
        self._offered.clear()
        load(self._slots.numbers(self._store.layers, self._store.experts))
        self.lent = True

    def take_back(self, numbers: Sequence[int]) -> None:
        """The slots are as the other executor has left them."""
        self._slots.hold(numbers, self._store.experts)
        self.reset()
        self.lent = False  # last: this may be interrupted, and is then done again

    def reset(self) -> None:
        """After an interruption, which may have come between any two lines: let what was begun end,
        drop the rest, and rebuild residency from what is in memory."""
        self.copier.halt()
        self._under_way.forget()
        self._offered = []
        self.residency.clear()
        self.residency.place(self._slots.rebuild())

    def _prepared(self, move: Move, kind: str, readers: Mapping[int, Any] | None = None) -> CopyT:
        if move.keep:
            return self.copier.prepare(move, self._slots.enter(move), kind)
        if move.victim is not None:
            self._slots.leave(move.victim)
        slot: Slot = self._slots.staging()
        copy = self.copier.prepare(move, slot, kind)
        if readers is not None:
            slot.read = readers.get(move.expert)
        return copy

    def _note_starts(self) -> None:
        while self._offered and self._offered[0].started:
            copy = self._offered.pop(0)
            self._slots.enter(copy.move)
            self._under_way.begin(copy, self._store.kernel.block_bytes)

    def _note_arrivals(self) -> None:
        while (copy := self._under_way.oldest) is not None and copy.ended():
            self._under_way.arrive(copy)
            if self._under_way.oldest is not None:
                self._under_way.oldest.follow()
            if self._timeline.enabled:
                begin, end = self.copier.times_ns(copy)
                layer, expert = copy.move.layer, copy.move.expert
                self._timeline.add(Span(PCIE, copy.kind, begin, end, layer, expert, 0))
