"""Layer by layer without an accelerator: everything runs synchronously on the caller's thread, with
as little around the experts as possible: no lanes, no hand-over."""

from __future__ import annotations

from time import perf_counter_ns

import torch

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, HOST_ONLY
from moesaic.core.report import LayerReport, Timeline, experts_span
from moesaic.core.residency import Residency
from moesaic.core.view import View
from moesaic.machines.accelerators import NONE
from moesaic.machines.layerwise.layerwise import Layerwise
from moesaic.machines.layerwise.probes import time_on_lane
from moesaic.machines.layerwise.single_token import single_token
from moesaic.machines.real.executor import Network
from moesaic.machines.real.lane import InlineLane


class CpuLayers(Layerwise):
    """`threads` is how many cores compute experts."""

    capabilities = NONE
    dense_on = CPU

    def __init__(
        self, network: Network, threads: int = 1, timeline: Timeline | None = None
    ) -> None:
        store = network.store
        home = Residency(HOST_ONLY, store.layers, store.experts, (None,))
        super().__init__(network, home, timeline)
        self.executor = store.kernel.executor(threads, store.nodes, strict=False)
        self._token = single_token(self.executor, store.kernel.shape.hidden, self.dtype)
        self._view = View.of(home, (), (0,))  # nothing ever moves
        self._probed: dict[tuple[int, int], int] = {}

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
        """Probe the CPU, whatever the device: there is no other, and it is measured once."""
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
