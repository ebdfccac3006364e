"""Copies experts to the device in a stream of its own: the ledger's `Copier` for a GPU.

A background copy is submitted when few are under way: what is not submitted when the next layer is
routed is dropped, and what a layer demands waits only for those few."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.slot_table import Slot
from moesaic.machines.real.streams import Mark, Streams

# Background copies under way at once, submitted here or by the conductor: the link does not idle
# between two, and what a layer demands waits for few.
BACKGROUND_COPIES = 2
_EXPECTED_GB_S = 20  # of the link, until it has been measured


@dataclass(slots=True, eq=False)
class DeviceCopy:
    """One expert on its way; the marks are there once it was submitted."""

    move: Move
    slot: Slot
    kind: str
    start_ns: int = 0
    begun: Mark | None = None
    arrived: Mark | None = None

    @property
    def started(self) -> bool:
        return self.arrived is not None

    def ended(self) -> bool:
        return self.arrived is not None and self.arrived.ended()

    def follow(self) -> None:
        self.start_ns = perf_counter_ns()


class StreamCopier:
    def __init__(self, store: ExpertStore, streams: Streams) -> None:
        self.duration_ns = store.kernel.block_bytes // _EXPECTED_GB_S
        self._store, self._streams = store, streams
        self._offered: deque[DeviceCopy] = deque()

    def prepare(self, move: Move, slot: Slot, kind: str) -> DeviceCopy:
        return DeviceCopy(move, slot, kind)

    def place(self, copies: Sequence[DeviceCopy]) -> None:
        """The stream that copies does not know what the slots' memory was used for before."""
        self._streams.synchronize()
        self.demand(copies)
        self._streams.synchronize()

    def demand(self, copies: Sequence[DeviceCopy]) -> None:
        for copy in copies:
            self._submit(copy)

    def offer(self, copies: Sequence[DeviceCopy]) -> None:
        self._offered = deque(copies)

    def pump(self, under_way: int) -> None:
        while self._offered and under_way < BACKGROUND_COPIES:
            self._submit(self._offered.popleft())
            under_way += 1

    def recall(self) -> None:
        self._offered.clear()

    def halt(self) -> None:
        self._offered.clear()
        self._streams.synchronize()

    def times_ns(self, copy: DeviceCopy) -> tuple[int, int]:
        assert copy.begun is not None, "it was submitted"
        assert copy.arrived is not None, "it was submitted"
        return self._streams.time_ns(copy.begun), self._streams.time_ns(copy.arrived)

    def _submit(self, copy: DeviceCopy) -> None:
        """`holds` is None while it is uncertain whether the copy was submitted."""
        slot, move = copy.slot, copy.move
        slot.holds = None
        source = self._store.block(move.layer, move.expert)
        copy.begun, arrived = self._streams.copy(slot.block, source, slot.read)
        slot.holds = ExpertId(move.layer, move.expert)
        copy.start_ns, copy.arrived = perf_counter_ns(), arrived
