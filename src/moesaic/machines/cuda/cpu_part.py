"""The CPU's experts of one layer, on a thread of their own beside the one that drives the GPU."""

from __future__ import annotations

from time import perf_counter_ns

import torch

from moesaic.core.offloading import CPU
from moesaic.core.report import Timeline, experts_span
from moesaic.machines.cuda.streams import Mark, Streams
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import InlineLane, Lane, ThreadLane
from moesaic.machines.real.probes import time_on_lane


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
        """Without handing over to the thread: a conductor has none."""
        return time_on_lane(self._store, dtype, self._executor, InlineLane(), tokens, experts)

    def reset(self) -> None:
        self._lane.reset()
        self._out = None

    def close(self) -> None:
        self._lane.close()
