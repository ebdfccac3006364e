"""The real machine with an accelerator: experts are computed on two worker lanes, and copied by
the accelerator's link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Event
from time import perf_counter_ns
from typing import NamedTuple

import torch

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU, OFFLOADING, PCIE
from moesaic.core.report import LayerReport, Span, Timeline, experts_span
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.core.units import nonzero_slowdown, slowed_by
from moesaic.core.view import View
from moesaic.kernels.base import LayerExecutor
from moesaic.kernels.grouping import Group, group_by_expert
from moesaic.machines.accelerators import EMULATED
from moesaic.machines.layerwise.layer_counts import count_layer
from moesaic.machines.layerwise.layerwise import Layerwise
from moesaic.machines.layerwise.probes import copies_running, time_on_lane, time_transfer
from moesaic.machines.real.copy_engine import Copy
from moesaic.machines.real.emulated_accelerator import EmulatedAccelerator
from moesaic.machines.real.executor import Network
from moesaic.machines.real.lane import Lane, ThreadLane
from moesaic.machines.real.ledger import Ledger
from moesaic.models.experts.expert_service import RoutedTokens


class Item(NamedTuple):
    """One expert for a lane: its weights, its tokens, the event to wait for and the one to set."""

    expert: int
    block: torch.Tensor
    group: Group
    arrival: Copy | None = None
    computed: Event | None = None


class LaneLayers(Layerwise):
    """`threads` is how many cores the CPU's lane may use."""

    capabilities = EMULATED

    def __init__(
        self,
        network: Network,
        accelerator: EmulatedAccelerator,
        threads: int = 1,
        timeline: Timeline | None = None,
    ) -> None:
        store = network.store
        residency = Residency(OFFLOADING, store.layers, store.experts, (accelerator.slots, None))
        super().__init__(network, residency, timeline)
        self.accelerator = accelerator
        self.ledger = Ledger(store, accelerator, self.residency, accelerator, self.timeline)
        self.cpu: Lane = ThreadLane("cpu", threads)
        self._executors: dict[str, LayerExecutor] = {
            CPU: store.kernel.executor(threads, store.nodes, strict=False),
            GPU: store.kernel.executor(1, strict=False),
        }
        self._shared_ns = 0  # how long shared experts take, by the last layer
        self._shared_since = 0  # when this layer's were submitted; 0: there are none
        self._computed: dict[int, Event] = {}
        self._busy: dict[str, int] = {}  # how long each lane computed for this layer

    def view(self, layer: int) -> View:
        in_flight = self.ledger.in_flight()
        link_ns = in_flight[-1].remaining_ns if in_flight else 0
        return View.of(self.residency, in_flight, (self._shared_left_ns(), 0, link_ns))

    def start(self, plan: LayerPlan) -> None:
        choice = self._routed.choice
        groups = group_by_expert(choice.experts, choice.weights)
        now = perf_counter_ns()
        coming = self.ledger.coming(plan.layer)
        size = self.store.kernel.block_bytes
        self._report = count_layer(plan, self.residency, coming, size, now)
        self._parts: dict[str, torch.Tensor] = {}
        on_gpu = plan.queues.get(GPU, ())
        if on_gpu:
            self._submit_one_by_one(self._accelerator_items(plan, on_gpu, groups))
        on_cpu = plan.queues.get(CPU, ())
        if on_cpu:
            self._submit_together(plan.layer, on_cpu, sum(groups[e].load for e in on_cpu))
        self.accelerator.lane.wake()
        self.cpu.wake()

    def offer(self, background: tuple[Move, ...]) -> None:
        if background:
            self.ledger.offer(background)

    def wait(self) -> LayerReport:
        self.accelerator.lane.join()
        self.cpu.join()
        self.ledger.poll()
        parts = list(self._parts.values())
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        self._total = total.to(self._routed.hidden.dtype)
        self._experts_ns += max(self._busy.values())
        self._lane_ns[CPU] += self._busy.get(CPU, 0)
        report = self._report._replace(end_ns=perf_counter_ns())
        self._reports.append(report)
        return report

    def place(self, experts: Sequence[ExpertId]) -> None:
        self.ledger.place(experts)

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        if device == CPU:
            executor = self._executors[CPU]
            return time_on_lane(self.store, self.dtype, executor, self.cpu, tokens, experts)
        filled, lane = self.accelerator.filled(), self.accelerator.lane
        executor = self._executors[GPU]
        return time_on_lane(self.store, self.dtype, executor, lane, tokens, experts, filled)

    def probe_slowdown(self, device: str) -> int:
        alone = self.probe(device, 1, 2)
        with copies_running(self.store, self.accelerator):
            return nonzero_slowdown(slowed_by(alone, self.probe(device, 1, 2)))

    def probe_transfer(self, link: str | None = None) -> int:
        return time_transfer(self.store, self.accelerator)

    @property
    def bytes_moved(self) -> int:
        return self.ledger.bytes_moved

    @property
    def busy_ns(self) -> Mapping[str, int]:
        return Counter(self._lane_ns) + Counter({PCIE: self.ledger.busy_ns})

    def _count_busy(self) -> None:
        """The network runs on the accelerator; experts were counted layer by layer."""
        self._lane_ns[GPU] += self._network_ns

    def close(self) -> None:
        super().close()
        self.cpu.close()
        self.accelerator.close()

    def _arrived(self, routed: RoutedTokens) -> None:
        """No new transfer starts from here on. The shared experts run on the accelerator, in
        parallel with the routed ones."""
        self.ledger.cancel_background()
        self._shared_since = 0
        self._busy = {}
        shared = routed.shared_experts
        if shared is None:
            return

        layer, tokens = routed.layer, self._step.tokens

        def compute() -> None:
            started = perf_counter_ns()
            shared.result()
            ended = perf_counter_ns()
            self._shared_ns = self._busy[GPU] = ended - started
            self._lane_ns[GPU] += ended - started
            if self.timeline.enabled:
                self.timeline.add(Span(GPU, "dense", started, ended, layer, -1, tokens))

        self._shared_since = perf_counter_ns()
        self.accelerator.lane.submit(compute)

    def _clear(self) -> None:
        for event in self._computed.values():  # staged experts may be overwritten
            event.set()
        self.accelerator.lane.reset()
        self.cpu.reset()
        self.ledger.reset()

    def _shared_left_ns(self) -> int:
        if not self._shared_since:
            return 0
        return max(self._shared_since + self._shared_ns - perf_counter_ns(), 0)

    def _accelerator_items(
        self, plan: LayerPlan, queue: tuple[int, ...], groups: dict[int, Group]
    ) -> list[Item]:
        demanded = {transfer.expert for transfer in plan.transfers}
        self._computed = {expert: Event() for expert in queue if expert in demanded}
        copies = self.ledger.coming(plan.layer)
        copies |= self.ledger.demand(plan.transfers, self._computed)
        items = []
        for expert in queue:
            copy = copies.get(expert)
            block = copy.target if copy else self.accelerator.block(plan.layer, expert)
            items.append(Item(expert, block, groups[expert], copy, self._computed.get(expert)))
        return items

    def _submit_one_by_one(self, items: list[Item]) -> None:
        """The accelerator's experts: each may have to wait for its own weights."""
        hidden, layer = self._routed.hidden, self._routed.layer
        out = torch.zeros(hidden.shape, dtype=torch.float32)
        self._parts[GPU] = out

        def compute() -> None:
            started = perf_counter_ns()
            try:
                for item in items:
                    self._compute(layer, item, hidden, out)
            finally:
                for item in items:
                    if item.computed is not None:
                        item.computed.set()
            taken = perf_counter_ns() - started
            self._busy[GPU] = self._busy.get(GPU, 0) + taken

        self.accelerator.lane.submit(compute)

    def _submit_together(self, layer: int, queue: tuple[int, ...], pairs: int) -> None:
        """The CPU's experts in one call: nothing is waited for in between. `pairs` of a token and
        an expert are computed."""
        choice, hidden = self._routed.choice, self._routed.hidden
        blocks, executor = self.store.layer(layer), self._executors[CPU]
        out = torch.empty(hidden.shape, dtype=torch.float32)
        self._parts[CPU] = out
        ragged = choice.counts is not None

        def compute() -> None:
            started = perf_counter_ns()
            executor.layer(blocks, queue, hidden, choice.experts, choice.weights, out, ragged)
            ended = perf_counter_ns()
            self._busy[CPU] = ended - started
            if self.timeline.enabled:
                self.timeline.add(experts_span(CPU, started, ended, layer, queue, pairs))

        self.cpu.submit(compute)

    def _compute(self, layer: int, item: Item, hidden: torch.Tensor, out: torch.Tensor) -> None:
        if item.arrival is not None:
            item.arrival.wait()
        started = perf_counter_ns()
        tokens, weights, count = item.group
        self._executors[GPU].expert(item.block, hidden, tokens, weights, out)
        if item.computed is not None:
            item.computed.set()
        ended = perf_counter_ns()
        self._lane_ns[GPU] += ended - started  # waiting for its weights is no work
        if self.timeline.enabled:
            queue = (item.expert,)
            self.timeline.add(experts_span(GPU, started, ended, layer, queue, count))
