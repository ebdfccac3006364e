"""What is in the accelerator and what is in flight: bookkeeping of the thread that drives the step.

The copying thread only copies; residency changes in `poll`, called by the driving thread, so a view
never changes during a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from time import perf_counter_ns

from moesaic.core.layer_plan import Move
from moesaic.core.offloading import PCIE
from moesaic.core.report import Span, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.core.view import Flight
from moesaic.machines.real.accelerator import STAGING, EmulatedAccelerator
from moesaic.machines.real.copy_engine import Copy, Slot
from moesaic.machines.real.expert_store import ExpertStore


class Transfers:
    def __init__(
        self,
        store: ExpertStore,
        accelerator: EmulatedAccelerator,
        residency: Residency,
        timeline: Timeline,
    ) -> None:
        self.residency = residency
        self.bytes_moved = 0
        self._store, self._accelerator, self._timeline = store, accelerator, timeline
        self._in_flight: list[Copy] = []  # counted, not seen to have arrived
        self._offered: list[Copy] = []  # may have started, not counted yet
        self._duration_ns = accelerator.link.speed.duration_ns(store.kernel.block_bytes)

    def place(self, experts: Sequence[ExpertId]) -> None:
        """The initial placement, copied at once."""
        self.residency.place(list(experts))
        for layer, expert in experts:
            transfer = Move(layer, expert)
            self._copy(transfer, self._accelerator.enter(transfer), "transfer").perform()

    def poll(self) -> None:
        """Update residency from copies that have started or arrived."""
        while self._offered and self._offered[0].started:
            self._enter(self._offered.pop(0))
        while self._in_flight and self._in_flight[0].arrived.is_set():
            copy = self._in_flight.pop(0)
            copy.wait()  # raises what went wrong
            self.residency.complete(copy.transfer)
            self._note(copy)

    def cancel_background(self) -> None:
        """No new copy starts from now on."""
        self._accelerator.link.cancel_background()
        self.poll()
        self._offered.clear()

    def in_flight(self) -> tuple[Flight, ...]:
        now, ready = perf_counter_ns(), 0
        found: list[Flight] = []
        for copy in self._in_flight:
            ready = ready + self._duration_ns if found else copy.start_ns + self._duration_ns - now
            ready = max(ready, 1)
            found.append(Flight(copy.transfer.layer, copy.transfer.expert, ready))
        return tuple(found)

    def demand(self, transfers: Sequence[Move], computed: dict[int, Event]) -> dict[int, Copy]:
        """Begin what a layer waits for; returns the copies by expert. A staged expert's place is
        free again when the event of the one staged `STAGING` before it has happened."""
        copies: list[Copy] = []
        staged: list[int] = []
        for transfer in transfers:
            if transfer.keep:
                copy = self._copy(transfer, self._accelerator.enter(transfer), "transfer")
            else:
                copy = self._staged_copy(transfer)
                if len(staged) >= STAGING:
                    copy.after = computed[staged[-STAGING]]
                staged.append(transfer.expert)
            copies.append(copy)
            self.residency.start(transfer)
        self.bytes_moved += len(copies) * self._store.kernel.block_bytes
        self._in_flight += copies
        self._accelerator.link.demand(copies)
        return {copy.transfer.expert: copy for copy in copies}

    def offer(self, transfers: Sequence[Move]) -> None:
        """What may move in idle link time."""
        slots = self._accelerator.targets(transfers)
        self._offered = [
            self._copy(transfer, slot, "prefetch")
            for transfer, slot in zip(transfers, slots, strict=True)
        ]
        self._accelerator.link.offer(self._offered)

    def coming(self, layer: int) -> dict[int, Copy]:
        """Copies under way to this layer, by expert."""
        return {c.transfer.expert: c for c in self._in_flight if c.transfer.layer == layer}

    def reset(self) -> None:
        """After an interruption, which may have come between any two lines: let what is being
        copied end, drop the rest, and rebuild residency from what is in memory."""
        self._accelerator.link.halt()
        self._in_flight, self._offered = [], []
        self.residency.clear()
        self.residency.place(self._accelerator.rebuild())

    def _copy(self, transfer: Move, slot: Slot, kind: str) -> Copy:
        source = self._store.block(transfer.layer, transfer.expert)
        return Copy(transfer, source, slot.block, kind, slot=slot)

    def _staged_copy(self, transfer: Move) -> Copy:
        if transfer.victim is not None:
            self._accelerator.leave(transfer.victim)
        source = self._store.block(transfer.layer, transfer.expert)
        return Copy(transfer, source, self._accelerator.staging(), "transfer")

    def _enter(self, copy: Copy) -> None:
        self._accelerator.enter(copy.transfer)
        self.residency.start(copy.transfer)
        self.bytes_moved += self._store.kernel.block_bytes
        self._in_flight.append(copy)

    def _note(self, copy: Copy) -> None:
        if self._timeline.enabled:
            layer, expert = copy.transfer.layer, copy.transfer.expert
            self._timeline.add(Span(PCIE, copy.kind, copy.start_ns, copy.end_ns, layer, expert, 0))
