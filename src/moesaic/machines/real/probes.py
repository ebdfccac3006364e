"""How long a machine takes for things, measured: what a brain's belief is made of."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter_ns

import torch

from moesaic.core.plan import Transfer
from moesaic.machines.real.accelerator import EmulatedAccelerator
from moesaic.machines.real.copies import Copy
from moesaic.machines.real.lane import Lane
from moesaic.machines.real.store import ExpertStore

_TIMES = 5


def time_on_lane(
    store: ExpertStore,
    dtype: torch.dtype,
    lane: Lane,
    tokens: int,
    experts: int,
    blocks: Sequence[torch.Tensor] = (),
) -> int:
    """Nanoseconds from handing over so many experts of so many tokens each to their end; another
    set of blocks every time, so that no cache holds them (the store's, where none are given)."""
    kernel = store.kernel
    hidden = torch.randn((tokens, kernel.shape.hidden), generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(dtype)
    weights, out = torch.ones(tokens, 1), torch.zeros((tokens, kernel.shape.hidden))
    blocks = blocks or store.some_blocks(experts * (_TIMES + 1))
    measured = []
    for attempt in range(_TIMES + 1):
        chosen = [blocks[(attempt * experts + i) % len(blocks)] for i in range(experts)]

        def compute(chosen: list[torch.Tensor] = chosen) -> None:
            for block in chosen:
                kernel.compute(block, hidden, None, weights, out)

        started = perf_counter_ns()
        with torch.inference_mode():
            lane.submit(compute)
            lane.join()
        measured.append(perf_counter_ns() - started)
    return round(median(measured[1:]))


def time_transfer(store: ExpertStore, accelerator: EmulatedAccelerator) -> int:
    """Nanoseconds from demanding one expert to its arrival."""
    measured = []
    for block in store.some_blocks(_TIMES):
        copy = Copy(Transfer(0, 0), block, accelerator.staging(), "transfer")
        started = perf_counter_ns()
        accelerator.link.demand([copy])
        copy.wait()
        measured.append(perf_counter_ns() - started)
    return round(median(measured))
