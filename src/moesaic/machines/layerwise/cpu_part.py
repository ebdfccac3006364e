"""The CPU's experts of one layer, on a thread of their own beside the one that drives the GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from time import perf_counter_ns

import torch

from moesaic.core.offloading import CPU
from moesaic.core.report import Timeline, experts_span
from moesaic.kernels.base import Blocks
from moesaic.machines.layerwise.probes import time_on_lane
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import InlineLane, Lane, ThreadLane
from moesaic.machines.real.streams import Mark, Streams

_FEW_TOKENS = 16  # of an expert: reading it takes as long as computing
_MANY_TOKENS = 256  # of an expert: two of them take long enough
_MORE_EXPERTS = 5
_DIFFERENT = 32  # calls until the same experts are read again: no cache holds as many


class CpuPart:
    """`busy_ns` is how long the last layer was computed."""

    def __init__(
        self, store: ExpertStore, threads: int, streams: Streams, timeline: Timeline
    ) -> None:
        self._store, self._streams, self._timeline = store, streams, timeline
        self._executor = store.kernel.executor(threads, store.nodes, strict=False)
        self._lane: Lane = ThreadLane("cpu", threads)
        self._out: torch.Tensor | None = None
        self.busy_ns = 0

    def start(
        self,
        layer: int,
        queue: tuple[int, ...],
        hidden: tuple[torch.Tensor, Mark],
        chosen: tuple[torch.Tensor, torch.Tensor],
        ragged: bool,
    ) -> None:
        """`hidden` is in host memory once its mark has passed; `chosen` are experts and weights of
        all tokens, [tokens, k]. Returns when the thread has begun."""
        values, arrived = hidden
        out = self._out = self._streams.host_like(values)
        blocks, (ids, weights) = self._store.layer(layer), chosen

        def compute() -> None:
            arrived.wait()
            started = perf_counter_ns()
            self._executor.layer(blocks, queue, values, ids, weights, out, ragged)
            ended = perf_counter_ns()
            self.busy_ns = ended - started
            if self._timeline.enabled:
                load = int(torch.isin(ids, torch.tensor(queue)).sum())
                self._timeline.add(experts_span(CPU, started, ended, layer, queue, load))

        self._lane.submit(compute)
        self._lane.wake()

    def join(self) -> torch.Tensor | None:
        """The weighted sums, fp32 [tokens, hidden]; None: nothing was started."""
        self._lane.join()
        out, self._out = self._out, None
        return out

    def probe(self, dtype: torch.dtype, tokens: int, experts: int) -> int:
        """Measure without handing over to the thread: a conductor has none. For a few tokens, the
        time of a further expert is taken from a call with more: on many cores it is small."""
        if experts == 1 or tokens > _MANY_TOKENS:
            return self._measured(dtype, tokens, experts)
        one, more = (self._measured(dtype, tokens, count) for count in (1, _MORE_EXPERTS))
        return one + round((experts - 1) * (more - one) / (_MORE_EXPERTS - 1))

    def repeated(self, dtype: torch.dtype, tokens: int, experts: int) -> Callable[[], None]:
        """A call that computes so many experts of so many tokens each, others every time."""
        width = self._store.kernel.shape.hidden
        hidden = torch.randn((tokens, width), generator=torch.Generator().manual_seed(0)).to(dtype)
        ids = torch.arange(experts).repeat(tokens, 1)
        weights, out = torch.ones((tokens, experts)), torch.zeros((tokens, width))
        blocks = self._store.some_blocks(_DIFFERENT * experts)
        firsts = range(0, len(blocks), experts)
        sets = cycle(
            [Blocks([blocks[(i + j) % len(blocks)] for j in range(experts)]) for i in firsts]
        )

        def compute() -> None:
            self._executor.layer(next(sets), range(experts), hidden, ids, weights, out)

        return compute

    def _measured(self, dtype: torch.dtype, tokens: int, experts: int) -> int:
        """The least of several medians: others may use the cores for a while."""
        lane, repeats = InlineLane(), 3 if tokens <= _FEW_TOKENS else 1
        how = self._store, dtype, self._executor, lane, tokens, experts
        return min(time_on_lane(*how) for _ in range(repeats))

    def reset(self) -> None:
        self._lane.reset()
        self._out = None

    def close(self) -> None:
        self._lane.close()
