"""Slots, copies and the GPU's queue by hand: who is where, who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cuda_runs import LateStreams

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import GPU, OFFLOADING
from moesaic.core.report import Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.reference import ReferenceKernel
from moesaic.machines.layerwise.gpu_queue import GpuQueue
from moesaic.machines.layerwise.gpu_spans import GpuSpans
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.real.device_slots import DeviceSlots
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.ledger import Ledger
from moesaic.machines.real.stream_copier import BACKGROUND_COPIES, StreamCopier
from moesaic.model_info.expert_shape import ExpertShape

LAYERS, EXPERTS, SLOTS, STAGING = 2, 30, 4, 8
HIDDEN = torch.zeros(1, 8)


def full_store() -> ExpertStore:
    """Every weight of an expert is its own number."""
    store = ExpertStore(ReferenceKernel(ExpertShape(8, 4), "fp32"), LAYERS, EXPERTS)
    for number in range(LAYERS * EXPERTS):
        values = torch.full((4, 8), float(number))
        store.put(ExpertId(*divmod(number, EXPERTS)), ExpertWeights(values, values, values.T))
    return store


class ReadingExperts:
    """Computes nothing: notes the number in every block it is given."""

    buffers = None

    def __init__(self, streams: LateStreams) -> None:
        self._streams = streams
        self.read: dict[int, float] = {}
        self.launches: list[tuple[int, ...]] = []

    def begin(self, hidden: torch.Tensor, pairs: Pairs) -> None:
        self.read, self.launches = {}, []

    def launch(self, experts: Sequence[int], blocks: Sequence[torch.Tensor]) -> None:
        self.launches.append(tuple(experts))
        for expert, block in zip(experts, blocks, strict=True):
            self._streams.read(block)
            self.read[expert] = float(block.view(torch.float32)[0])

    def total(self) -> torch.Tensor:
        return HIDDEN


class Bench:
    def __init__(self) -> None:
        self.streams, store = LateStreams(), full_store()
        self.residency = Residency(OFFLOADING, LAYERS, EXPERTS, (SLOTS, None))
        self.slots = DeviceSlots(SLOTS, STAGING, store.kernel.block_bytes, "cpu")
        off = Timeline(enabled=False)
        copier = StreamCopier(store, self.streams)
        self.ledger = Ledger(store, self.slots, self.residency, copier, off)
        self.experts, spans = ReadingExperts(self.streams), GpuSpans(self.streams, off)
        self.queue = GpuQueue(self.experts, self.slots, self.ledger, self.streams, spans)

    def run(self, layer: int, queue: Sequence[int], moves: Sequence[Move]) -> None:
        self.ledger.cancel_background()
        self.queue.demand(LayerPlan(layer, {GPU: tuple(queue)}, tuple(moves)))
        chosen = np.array([list(queue)], dtype=np.int64)
        self.queue.start(queue, HIDDEN, Pairs(chosen, np.ones(chosen.shape, np.float32)))


@pytest.mark.parametrize("count", [1, 4, 5, 8, 9, 17, 30])
def test_more_experts_are_streamed_than_there_is_staging(count: int) -> None:
    bench = Bench()
    for layer in (0, 1, 0):
        bench.run(layer, range(count), [Move(layer, e, keep=False) for e in range(count)])
        assert bench.experts.read == {e: layer * EXPERTS + e for e in range(count)}
        assert max(map(len, bench.experts.launches)) <= STAGING // 2
    assert bench.residency.occupied == 0
    assert bench.ledger.bytes_moved == 3 * count * bench.slots.slab.shape[1]


def test_resident_experts_come_first_and_together() -> None:
    bench = Bench()
    bench.ledger.place([ExpertId(0, 7), ExpertId(0, 3)])
    moves = [Move(0, 1), Move(0, 9, keep=False), Move(0, 2, ExpertId(0, 7))]
    bench.run(0, [1, 3, 9, 2], moves)
    assert bench.experts.launches == [(3,), (1, 9, 2)]
    assert bench.experts.read == {1: 1, 3: 3, 9: 9, 2: 2}
    bench.streams.synchronize()
    bench.ledger.cancel_background()
    assert np.argwhere(bench.residency.resident).tolist() == [[0, 1], [0, 2], [0, 3]]


def test_an_expert_under_way_is_waited_for_and_few_are_at_once() -> None:
    bench = Bench()
    bench.ledger.offer([Move(1, expert) for expert in (4, 5, 6)])
    assert list(bench.ledger.coming(1)) == [4, 5], "the third may still be dropped"
    assert [flight.expert for flight in bench.ledger.in_flight()] == [4, 5]
    assert bench.streams.longest == BACKGROUND_COPIES
    bench.run(1, [4, 5, 6], [Move(1, 6, keep=False)])
    assert bench.experts.launches == [(4, 5), (6,)]
    assert bench.experts.read == {e: EXPERTS + e for e in (4, 5, 6)}


def test_what_was_offered_goes_on_when_the_link_is_free() -> None:
    bench = Bench()
    bench.ledger.offer([Move(1, expert) for expert in (4, 5, 6)])
    bench.streams.synchronize()
    bench.ledger.poll()
    assert list(bench.ledger.coming(1)) == [6]
    assert bench.residency.resident[1, 4:7].tolist() == [1, 1, 0]
    bench.ledger.cancel_background()
    bench.streams.synchronize()
    bench.ledger.poll()
    assert bench.residency.resident[1, 4:7].tolist() == [1, 1, 1]


def test_a_failed_copy_leaves_its_slot_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is written when it fails: the victim is gone, and the expert is not there."""
    bench = Bench()
    bench.ledger.place([ExpertId(0, expert) for expert in range(SLOTS)])

    def failing(target: torch.Tensor, source: torch.Tensor, after: object) -> None:
        target.fill_(255)
        raise RuntimeError("the link failed")

    with monkeypatch.context() as patched:
        patched.setattr(bench.streams, "copy", failing)
        with pytest.raises(RuntimeError, match="the link failed"):
            bench.run(0, [9], [Move(0, 9, ExpertId(0, 2))])
    bench.ledger.reset()
    assert np.argwhere(bench.residency.resident).tolist() == [[0, 0], [0, 1], [0, 3]]
    bench.run(0, [9, 0], [Move(0, 9)])
    assert bench.experts.read == {9: 9, 0: 0}


def test_a_view_names_only_copies_to_slots_and_this_layers_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    staged = [Move(0, expert, keep=False) for expert in range(3)]
    kept = [Move(0, 5), Move(1, 6), Move(1, 7)]
    bench.ledger.demand([*staged, *kept])
    under_way = bench.ledger.in_flight()
    assert len(under_way) == 6
    named = bench.ledger.to_slots(under_way, 1)
    assert [(each.layer, each.expert) for each in named] == [(0, 5), (1, 6), (1, 7)]
    monkeypatch.setattr("moesaic.machines.real.ledger.FLIGHT_CAPACITY", 2)
    named = bench.ledger.to_slots(under_way, 1)
    assert [(each.layer, each.expert) for each in named] == [(1, 6), (1, 7)]
