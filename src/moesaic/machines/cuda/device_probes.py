"""How long the device and its link take for things, measured: what a brain's belief is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns

import numpy as np
import torch

from moesaic.machines.cuda.device_experts import DeviceExperts
from moesaic.machines.cuda.pairs import Pairs
from moesaic.machines.cuda.slots import DeviceSlots
from moesaic.machines.cuda.streams import Streams
from moesaic.machines.real.expert_store import ExpertStore

_TIMES = 5
_COPIES = 256  # at most: what was submitted cannot be recalled


def fill_staging(store: ExpertStore, slots: DeviceSlots, streams: Streams) -> list[torch.Tensor]:
    """Blocks on the device with weights in them."""
    for slot, block in zip(slots.staged, store.some_blocks(len(slots.staged)), strict=False):
        streams.copy(slot.block, block, slot.read)
    streams.synchronize()
    return [slot.block for slot in slots.staged]


def time_experts(
    computing: DeviceExperts,
    blocks: list[torch.Tensor],
    hidden: torch.Tensor,
    experts: int,
    streams: Streams,
) -> int:
    """Nanoseconds from submitting so many experts of all rows of `hidden` to their end; other
    blocks every time, as far as there are."""
    rows = len(hidden)
    chosen = np.tile(np.arange(experts, dtype=np.int64), (rows, 1))
    pairs = Pairs(chosen, np.ones((rows, experts), dtype=np.float32))
    measured = []
    for attempt in range(_TIMES + 1):
        start = attempt * experts
        used = [blocks[(start + i) % len(blocks)] for i in range(experts)]
        started = perf_counter_ns()
        computing.begin(hidden, pairs)
        computing.launch(range(experts), used)
        computing.total()
        streams.synchronize()
        measured.append(perf_counter_ns() - started)
    return round(median(measured[1:]))


def time_copy(store: ExpertStore, slots: DeviceSlots, streams: Streams) -> int:
    """Nanoseconds from demanding one expert to its arrival."""
    measured = []
    for block in store.some_blocks(_TIMES):
        slot = slots.staging()
        started = perf_counter_ns()
        _, arrived = streams.copy(slot.block, block, slot.read)
        arrived.wait()
        measured.append(perf_counter_ns() - started)
    return round(median(measured))


@contextmanager
def copies_for(
    duration_ns: int, copy_ns: int, store: ExpertStore, slots: DeviceSlots, streams: Streams
) -> Iterator[None]:
    """The link copies experts for about so long."""
    count = min(duration_ns // max(copy_ns, 1) + 1, _COPIES)
    blocks, slot = store.some_blocks(_TIMES), slots.staging()
    for number in range(count):
        streams.copy(slot.block, blocks[number % len(blocks)], slot.read)
    try:
        yield
    finally:
        streams.synchronize()
