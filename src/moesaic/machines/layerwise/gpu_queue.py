"""The GPU's experts of one layer: resident ones first, then those that arrive, in groups.

Staging slots are used in turn. Copies of a group are submitted before the group in front of it is
computed, so the link never waits for Python; a slot is overwritten only after the group that read
it, two groups before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.machines.layerwise.device_experts import DeviceExperts
from moesaic.machines.layerwise.gpu_spans import GpuSpans
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.real.device_slots import DeviceSlots
from moesaic.machines.real.ledger import Ledger
from moesaic.machines.real.slot_table import Slot
from moesaic.machines.real.stream_copier import DeviceCopy
from moesaic.machines.real.streams import Mark, Streams


class GpuQueue:
    def __init__(
        self,
        experts: DeviceExperts,
        slots: DeviceSlots,
        ledger: Ledger[DeviceCopy],
        streams: Streams,
        spans: GpuSpans,
    ) -> None:
        self._experts, self._slots, self._ledger = experts, slots, ledger
        self._streams, self._spans = streams, spans
        self._group = max(len(slots.staged) // 2, 1)

    def demand(self, plan: LayerPlan) -> None:
        """Submit the first copies of a layer."""
        self._layer = plan.layer
        self._under_way = self._ledger.coming(plan.layer)
        moves = plan.transfers
        self._groups = [moves[i : i + self._group] for i in range(0, len(moves), self._group)]
        self._copies = [self._ledger.demand(group) for group in self._groups[:2]]

    def start(self, queue: Sequence[int], hidden: torch.Tensor, pairs: Pairs) -> None:
        """Submit everything else, after `demand`."""
        self._pairs = pairs
        self._experts.begin(hidden, pairs)
        demanded = {move.expert for group in self._groups for move in group}
        elsewhere = demanded | self._under_way.keys()
        resident = [expert for expert in queue if expert not in elsewhere]
        self._launch(resident, [self._slots.slot(self._layer, expert) for expert in resident])
        wanted = set(queue)
        self._arriving([copy for e, copy in self._under_way.items() if e in wanted])
        for number, group in enumerate(self._groups):
            self._arriving(self._of(number, group, wanted))

    def total(self) -> torch.Tensor:
        """The weighted sums: fp32 [tokens, hidden]."""
        return self._experts.total()

    def _of(self, number: int, group: Sequence[Move], wanted: set[int]) -> list[DeviceCopy]:
        """The group's copies that are computed. The next group's are submitted first; they may
        overwrite what the group before this one has read."""
        if number and number + 1 < len(self._groups):
            self._copies.append(self._ledger.demand(self._groups[number + 1]))
        return [copy for expert, copy in self._copies[number].items() if expert in wanted]

    def _arriving(self, copies: Sequence[DeviceCopy]) -> None:
        for copy in copies:
            assert copy.arrived is not None, "it was submitted"
            self._streams.after(copy.arrived)
        self._launch([copy.move.expert for copy in copies], [copy.slot for copy in copies])

    def _launch(self, experts: Sequence[int], slots: Sequence[Slot]) -> None:
        if not experts:
            return
        begun = self._streams.mark()
        self._experts.launch(experts, [slot.block for slot in slots])
        ended = self._streams.mark()
        self._note(experts, slots, begun, ended)

    def _note(
        self, experts: Sequence[int], slots: Sequence[Slot], begun: Mark, ended: Mark
    ) -> None:
        for slot in slots:
            slot.read = ended
        load = sum(self._pairs.load(expert) for expert in experts)
        self._spans.experts(begun, ended, self._layer, tuple(experts), load)
