"""How long the device and its link take for things, measured: what a brain's belief is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import numpy as np
import torch

from moesaic.machines.cuda.device_experts import DeviceExperts
from moesaic.machines.cuda.pairs import Pairs
from moesaic.machines.cuda.slots import DeviceSlots
from moesaic.machines.cuda.streams import Mark, Streams
from moesaic.machines.real.expert_store import ExpertStore

_TIMES = 5
_COPIES = 1000  # at most: what was submitted cannot be recalled


def time_experts(
    computing: DeviceExperts,
    blocks: Sequence[torch.Tensor],
    hidden: torch.Tensor,
    experts: int,
    streams: Streams,
) -> int:
    """Nanoseconds that the device takes for so many experts of all rows of `hidden` in one launch,
    without what the host needs to submit them; other blocks every time, as far as there are."""
    rows = len(hidden)
    chosen = np.tile(np.arange(experts, dtype=np.int64), (rows, 1))
    pairs = Pairs(chosen, np.ones((rows, experts), dtype=np.float32))
    measured = []
    for attempt in range(_TIMES + 1):
        start = attempt * experts
        used = [blocks[(start + i) % len(blocks)] for i in range(experts)]
        computing.begin(hidden, pairs)
        streams.hold()
        begun = streams.mark()
        computing.launch(range(experts), used)
        measured.append(_between(begun, streams.mark(), streams))
    return round(median(measured[1:]))


def time_copy(store: ExpertStore, slots: DeviceSlots, streams: Streams) -> int:
    """Nanoseconds that one expert takes over the link, in a row of several."""
    copies = [
        streams.copy(slot.block, block, slot.read)
        for slot, block in zip(slots.staged, store.some_blocks(len(slots.staged)), strict=False)
    ]
    (begun, _), (_, ended) = copies[0], copies[-1]
    return round(_between(begun, ended, streams) / len(copies))


def _between(begun: Mark, ended: Mark, streams: Streams) -> int:
    streams.synchronize()
    return max(streams.time_ns(ended) - streams.time_ns(begun), 1)


@contextmanager
def copies_for(
    duration_ns: int, copy_ns: int, store: ExpertStore, slots: DeviceSlots, streams: Streams
) -> Iterator[None]:
    """The link copies experts for about so long."""
    count = min(duration_ns // max(copy_ns, 1) + 1, _COPIES)
    streams.copy_again(slots.staging().block, store.some_blocks(_TIMES), count)
    try:
        yield
    finally:
        streams.synchronize()
