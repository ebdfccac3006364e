"""The real machine without an accelerator: everything happens here and now, on the caller's thread.

A decode layer's experts take some milliseconds; what surrounds them is kept to the least: no lanes,
no hand-over, nothing to keep books of.
"""

from __future__ import annotations

from time import perf_counter_ns

import torch

from moesaic.core.layer_plan import LayerPlan, Transfer
from moesaic.core.report import LayerReport, Span, Timeline
from moesaic.core.view import CPU, View
from moesaic.kernels.grouping import group_by_expert
from moesaic.machines.real.lane import InlineLane
from moesaic.machines.real.machine import RealMachine
from moesaic.machines.real.probes import time_on_lane
from moesaic.machines.real.routing import Translator
from moesaic.machines.real.single_token import single_token
from moesaic.machines.real.store import ExpertStore


class CpuMachine(RealMachine):
    """Implements `core.machine.Body`. `threads` is how many cores compute experts."""

    dense_on = CPU

    def __init__(
        self,
        store: ExpertStore,
        translator: Translator,
        dtype: torch.dtype,
        threads: int = 1,
        timeline: Timeline | None = None,
    ) -> None:
        super().__init__(store, translator, dtype, timeline=timeline)
        self.executor = store.kernel.executor(threads, store.nodes, strict=False)
        self._token = single_token(self.executor, store.kernel.shape.hidden, dtype)
        books = self.residency  # nothing is ever resident
        self._view = View(books.resident, 0, books.held, 0, (), (CPU,))

    def view(self, layer: int) -> View:
        return self._view

    def start(self, plan: LayerPlan, planning_ns: int = 0) -> None:
        """Computes it, too."""
        layer, queue = plan.layer, plan.queues[CPU]
        if self.timeline.enabled:
            self._one_by_one(layer, queue)
            return
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

    def _one_by_one(self, layer: int, queue: tuple[int, ...]) -> None:
        """So that the timeline has a span for each."""
        choice, hidden = self._routed.choice, self._routed.hidden
        out = torch.zeros(hidden.shape, dtype=torch.float32)
        groups = group_by_expert(choice.experts, choice.weights)
        started = began = perf_counter_ns()
        for expert in queue:
            tokens, weights, load = groups[expert]
            self.executor.expert(self.store.block(layer, expert), hidden, tokens, weights, out)
            now = perf_counter_ns()
            self.timeline.add(Span(CPU, "expert", began, now, layer, expert, load))
            began = now
        self._end(layer, queue, out.to(hidden.dtype), started, perf_counter_ns() - started)

    def _end(
        self, layer: int, queue: tuple[int, ...], total: torch.Tensor, started: int, taken: int
    ) -> None:
        self._experts_ns += taken
        self._total = total
        self._report = LayerReport(layer, started, perf_counter_ns(), len(queue), 0, 0)

    def offer(self, background: tuple[Transfer, ...], lookahead_ns: int = 0) -> None:
        assert not background, "nowhere to move an expert to"

    def wait(self) -> LayerReport:
        self._reports.append(self._report)
        return self._report

    def probe(self, device: str, tokens: int, experts: int) -> int:
        """Of the CPU, whatever the device: there is no other."""
        return time_on_lane(self.store, self.dtype, self.executor, InlineLane(), tokens, experts)

    def probe_transfer(self) -> int:
        return 0
