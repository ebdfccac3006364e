"""How long a machine takes for things, measured: what a brain's belief is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns

import torch

from moesaic.core.layer_plan import Move
from moesaic.kernels.base import Blocks, LayerExecutor
from moesaic.machines.real.copy_engine import Copy
from moesaic.machines.real.emulated_accelerator import EmulatedAccelerator
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import Lane

_TIMES = 5
_ENOUGH_NS = (
    50_000_000  # of one kind: what takes long is measured fewer times, a model waits for it
)
_COPIES = 1024  # more than there is time for while something is measured


def time_on_lane(
    store: ExpertStore,
    dtype: torch.dtype,
    executor: LayerExecutor,
    lane: Lane,
    tokens: int,
    experts: int,
    blocks: Sequence[torch.Tensor] = (),
) -> int:
    """Nanoseconds from handing over so many experts of so many tokens each to their end; another
    set of blocks every time, so that no cache holds them (the store's, where none are given)."""
    width = store.kernel.shape.hidden
    hidden = torch.randn((tokens, width), generator=torch.Generator().manual_seed(0)).to(dtype)
    ids = torch.arange(experts).repeat(tokens, 1)
    weights, out = torch.ones((tokens, experts)), torch.zeros((tokens, width))
    blocks = blocks or store.some_blocks(experts * (_TIMES + 1))
    measured = []
    for attempt in range(_TIMES + 1):
        chosen = Blocks([blocks[(attempt * experts + i) % len(blocks)] for i in range(experts)])

        def compute(chosen: Blocks = chosen) -> None:
            executor.layer(chosen, range(experts), hidden, ids, weights, out)

        started = perf_counter_ns()
        with torch.inference_mode():
            lane.submit(compute)
            lane.join()
        measured.append(perf_counter_ns() - started)
        if sum(measured[1:]) > _ENOUGH_NS:
            break
    return round(median(measured[1:]))


def time_transfer(store: ExpertStore, accelerator: EmulatedAccelerator) -> int:
    """Nanoseconds from demanding one expert to its arrival."""
    measured = []
    for block in store.some_blocks(_TIMES):
        copy = Copy(Move(0, 0), block, accelerator.staging().block, "transfer")
        started = perf_counter_ns()
        accelerator.link.demand([copy])
        copy.wait()
        measured.append(perf_counter_ns() - started)
    return round(median(measured))


@contextmanager
def copies_running(store: ExpertStore, accelerator: EmulatedAccelerator) -> Iterator[None]:
    """The link copies experts all the time."""
    blocks, target = store.some_blocks(_TIMES), accelerator.staging().block
    sources = (blocks[i % len(blocks)] for i in range(_COPIES))
    accelerator.link.offer([Copy(Move(0, 0), block, target, "prefetch") for block in sources])
    try:
        yield
    finally:
        accelerator.link.halt()
