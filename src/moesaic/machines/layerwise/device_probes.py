"""How long the device and its link take for things, measured: what a brain's belief is made of."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.machines.layerwise.device_experts import DeviceExperts
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.real.device_slots import DeviceSlots
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.streams import Mark, Streams

_TIMES = 5


def time_experts(
    computing: DeviceExperts,
    blocks: Sequence[torch.Tensor],
    hidden: torch.Tensor,
    chosen: NDArray[np.int64],
    streams: Streams,
) -> int:
    """Nanoseconds that the device takes for all experts that are `chosen` [rows, k] for the rows of
    `hidden`, in one launch, without what the host needs to submit them; other blocks every time,
    as far as there are."""
    experts = int(chosen.max()) + 1
    pairs = Pairs(chosen, np.ones(chosen.shape, dtype=np.float32))
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
