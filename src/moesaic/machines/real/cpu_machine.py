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
        hidden, layer, queue = self._routed.hidden, plan.layer, plan.queues[CPU]
        out = torch.zeros(hidden.shape, dtype=torch.float32)
        if len(hidden) == 1 and not self.timeline.enabled:
            started, ended = self._compute_one(layer, queue, hidden, out)
        else:
            started, ended = self._compute_many(layer, queue, hidden, out)
        self._experts_ns += ended - started
        self._total = out.to(hidden.dtype)
        self._report = LayerReport(layer, started, ended, len(queue), 0, 0)

    def _compute_one(
        self, layer: int, queue: tuple[int, ...], hidden: torch.Tensor, out: torch.Tensor
    ) -> tuple[int, int]:
        """One token: nothing to group, and its weights are plain numbers."""
        choice, block, compute = self._routed.choice, self.store.block, self.store.kernel.compute
        weights = dict(zip(choice.experts.tolist()[0], choice.weights.tolist()[0], strict=True))
        started = perf_counter_ns()
        for expert in queue:
            compute(block(layer, expert), hidden, None, weights[expert], out)
        return started, perf_counter_ns()

    def _compute_many(
        self, layer: int, queue: tuple[int, ...], hidden: torch.Tensor, out: torch.Tensor
    ) -> tuple[int, int]:
        choice, block, compute = self._routed.choice, self.store.block, self.store.kernel.compute
        groups = group_by_expert(choice.experts, choice.weights)
        started = began = perf_counter_ns()
        for expert in queue:
            tokens, weights, load = groups[expert]
            compute(block(layer, expert), hidden, tokens, weights, out)
            now = perf_counter_ns()
            if self.timeline.enabled:
                self.timeline.add(Span(CPU, "expert", began, now, layer, expert, load))
            began = now
        return started, perf_counter_ns()

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
