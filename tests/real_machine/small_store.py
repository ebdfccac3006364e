"""A small expert store with different weights in every block, and a link moved by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import torch

from moesaic.core.routing import ExpertId
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.choose import make_kernel
from moesaic.machines.real.copy_engine import Copy, LinkSpeed
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.model_info.expert_shape import ExpertShape

SHAPE = ExpertShape(hidden=8, intermediate=5)
FAST = LinkSpeed(bandwidth_gb_s=1000.0, latency_us=0.0)


def random_weights(seed: int) -> ExpertWeights:
    generator = torch.Generator().manual_seed(seed)
    gate, up = (torch.randn((5, 8), generator=generator) for _ in range(2))
    return ExpertWeights(gate, up, torch.randn((8, 5), generator=generator))


def small_store(layers: int = 3, experts: int = 5, dtype: str = "fp32") -> ExpertStore:
    store = ExpertStore(make_kernel(SHAPE, dtype), layers, experts)
    for layer in range(layers):
        for expert in range(experts):
            store.put(ExpertId(layer, expert), random_weights(layer * experts + expert))
    return store


class HandLink:
    """Copies begin and arrive when the test says so; otherwise a `CopyEngine`. Nothing runs beside
    the test, so that every interleaving can be tried, always the same way."""

    def __init__(self, speed: LinkSpeed = FAST) -> None:
        self.speed = speed
        self.demanded: deque[Copy] = deque()
        self.background: deque[Copy] = deque()
        self.current: Copy | None = None
        self.just_before_recall: Callable[[], None] = lambda: None

    def demand(self, copies: Sequence[Copy]) -> None:
        self.demanded.extend(copies)

    def offer(self, copies: Sequence[Copy]) -> None:
        self.background.extend(copies)

    def cancel_background(self) -> None:
        self.just_before_recall()
        self.background.clear()

    def halt(self) -> None:
        self.demanded.clear()
        self.background.clear()
        self.arrive()

    def close(self) -> None:
        pass

    def begin(self) -> Copy | None:
        """The next copy, if the link is free and there is one."""
        if self.current is None and (self.demanded or self.background):
            copy = self.current = (self.demanded or self.background).popleft()
            assert copy.after is None or copy.after.is_set(), "its place is still in use"
            copy.started, copy.start_ns = True, perf_counter_ns()
        return self.current

    def arrive(self) -> Copy | None:
        copy, self.current = self.current, None
        if copy is not None:
            copy.perform()
            copy.end_ns = perf_counter_ns()
            copy.arrived.set()
        return copy
