"""The real machine without an accelerator: everything happens here and now, on the caller's thread.

A decode layer's experts take some milliseconds; what surrounds them is kept to the least: no lanes,
no hand-over, nothing to keep books of.
"""

from __future__ import annotations

from time import perf_counter_ns

import torch

from moesaic.core.plan import LayerPlan, Transfer
from moesaic.core.report import LayerReport, Span
from moesaic.core.view import CPU, View
from moesaic.kernels.grouping import group_by_expert
from moesaic.machines.real.lane import InlineLane
from moesaic.machines.real.machine import RealMachine
from moesaic.machines.real.probes import time_on_lane


class CpuMachine(RealMachine):
    """Implements `core.machine.Body`."""

    dense_on = CPU

    def view(self, layer: int) -> View:
        books = self.residency  # nothing is ever resident
        return View(books.resident, 0, books.held, 0, (), (CPU,))

    def start(self, plan: LayerPlan, planning_ns: int = 0) -> None:
        """Computes it, too."""
        _, hidden, _, choice, _ = self._routed
        layer, queue, compute = plan.layer, plan.queues[CPU], self.store.kernel.compute
        groups, block = group_by_expert(choice.experts, choice.weights), self.store.block
        out = torch.zeros(hidden.shape, dtype=torch.float32)
        noting = self.timeline.enabled
        started = began = perf_counter_ns()
        for expert in queue:
            tokens, weights, count = groups[expert]
            compute(block(layer, expert), hidden, tokens, weights, out)
            if noting:
                now = perf_counter_ns()
                self.timeline.add(Span(CPU, "expert", began, now, layer, expert, count))
                began = now
        ended = perf_counter_ns()
        self._experts_ns += ended - started
        self._total = out.to(hidden.dtype)
        self._report = LayerReport(layer, started, ended, len(queue), 0, 0)

    def offer(self, background: tuple[Transfer, ...], lookahead_ns: int = 0) -> None:
        assert not background, "nowhere to move an expert to"

    def wait(self) -> LayerReport:
        self._reports.append(self._report)
        return self._report

    def probe(self, device: str, tokens: int, experts: int) -> int:
        """Of the CPU, whatever the device: there is no other."""
        return time_on_lane(self.store, self.dtype, InlineLane(), tokens, experts)

    def probe_transfer(self) -> int:
        return 0
