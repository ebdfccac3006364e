"""The real machine without an accelerator: everything runs synchronously on the caller's thread.

Decode steps run as one native call where the network and this CPU allow it. Otherwise, and for
prompts, layer by layer with as little around the experts as possible: no lanes, no hand-over.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from moesaic.core.body import Decider
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.native_brain import NativeBrain
from moesaic.core.offloading import CPU, HOST_ONLY
from moesaic.core.report import LayerReport, StepReport, Timeline, experts_span
from moesaic.core.residency import Residency
from moesaic.core.view import View
from moesaic.kernels.freed_memory import keep_freed_memory
from moesaic.machines.accelerators import NONE
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.lane import InlineLane
from moesaic.machines.real.probes import time_on_lane
from moesaic.machines.real.real_machine import ForwardPass, RealMachine
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.machines.real.single_token import pool_of, single_token
from moesaic.models.decoder import Decoder
from moesaic.models.kv_cache import ContiguousCache

if TYPE_CHECKING:
    from moesaic.machines.real.native_decoding import NativeDecoding


class CpuMachine(RealMachine):
    """`threads` is how many cores compute experts."""

    capabilities = NONE
    dense_on = CPU

    def __init__(
        self,
        store: ExpertStore,
        adapter: RoutingAdapter,
        dtype: torch.dtype,
        threads: int = 1,
        timeline: Timeline | None = None,
    ) -> None:
        home = Residency(HOST_ONLY, store.layers, store.experts, (None,))
        super().__init__(store, adapter, dtype, home, timeline)
        self.executor = store.kernel.executor(threads, store.nodes, strict=False)
        self._token = single_token(self.executor, store.kernel.shape.hidden, dtype)
        self._view = View.of(home, (), (0,))  # nothing ever moves
        self._decoding: NativeDecoding | None = None
        self._probed: dict[tuple[int, int], int] = {}
        self.layerwise_because: str | None = "nothing is attached"

    def attach(
        self,
        decoder: Decoder,
        cache: ContiguousCache,
        brain: Decider,
        native: Callable[[], NativeBrain | None],
    ) -> None:
        pool = pool_of(self.executor)
        if pool is None:
            several = len(self.store.nodes) > 1
            self.layerwise_because = (
                "experts are on several NUMA nodes"
                if several
                else "experts have no native kernel here"
            )
            return
        from moesaic.machines.real.native_decoding import NativeDecoding
        from moesaic.machines.real.native_step import NativeStep
        from moesaic.machines.real.step_description import why_layerwise

        if decoder.dense is not None:
            decoder.dense.use(pool)
            keep_freed_memory()
        self.layerwise_because = why_layerwise(decoder, self.store)
        if self.layerwise_because is None:
            step = NativeStep(decoder, self.store, cache, pool)
            self._decoding = NativeDecoding(step, cache, brain, self._adapter)

    def step(self, work: ForwardPass, brain: Decider) -> StepReport:
        """Decode steps natively where that is possible, others layer by layer."""
        decoding = self._decoding
        if decoding is None or not decoding.takes(work):
            return super().step(work, brain)
        self.abandon()
        self._steps += 1
        done = decoding.step(self._steps, work, brain, self._view)
        self.output, self.times = done.logits, done.times
        for span in decoding.spans() if self.timeline.enabled else ():
            self.timeline.add(span)
        return done.report

    def drive_layerwise(self, because: str) -> None:
        self._decoding, self.layerwise_because = None, because

    def view(self, layer: int) -> View:
        return self._view

    def start(self, plan: LayerPlan) -> None:
        """Computes it, too."""
        layer, queue = plan.layer, plan.queues[CPU]
        native = self._routed.native
        if native is not None and self._token is not None and len(native.hidden) == 1:
            out, taken = self._token(self.store.layer(layer), queue, native)
            self._end(layer, queue, out, perf_counter_ns() - taken, taken)
            return
        choice, hidden = self._routed.choice, self._routed.hidden
        out = torch.empty_like(hidden)
        blocks = self.store.layer(layer)
        started = perf_counter_ns()
        ids, weights, ragged = choice.experts, choice.weights, choice.counts is not None
        taken = self.executor.layer(blocks, queue, hidden, ids, weights, out, ragged)
        self._end(layer, queue, out, started, taken)

    def _end(
        self, layer: int, queue: tuple[int, ...], total: torch.Tensor, started: int, taken: int
    ) -> None:
        self._experts_ns += taken
        self._total = total
        self._report = LayerReport(layer, started, perf_counter_ns(), len(queue), 0, 0)
        if self.timeline.enabled:
            pairs = int((self._routed.choice.experts >= 0).sum())
            self.timeline.add(experts_span(CPU, started, started + taken, layer, queue, pairs))

    def offer(self, background: tuple[Move, ...]) -> None:
        assert not background, "nowhere to move an expert to"

    def wait(self) -> LayerReport:
        self._reports.append(self._report)
        return self._report

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        """Of the CPU, whatever the device: there is no other, and it is measured once."""
        asked = (tokens, experts)
        if asked not in self._probed:
            lane = InlineLane()
            self._probed[asked] = time_on_lane(
                self.store, self.dtype, self.executor, lane, tokens, experts
            )
        return self._probed[asked]

    def probe_slowdown(self, device: str) -> int:
        """There is nothing to copy to."""
        return 0

    def probe_transfer(self, link: str | None = None) -> int:
        return 0
