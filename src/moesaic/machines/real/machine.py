"""The real machine: executes plans with real weights in real time. It decides nothing.

One conducting thread (the caller's) walks through the network and keeps the books; experts are
computed on lanes beside it, and copied by the accelerator's link.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import perf_counter_ns
from typing import NamedTuple

import torch

from moesaic.core.machine import Step
from moesaic.core.plan import LayerPlan, Transfer
from moesaic.core.report import LayerReport, Span, StepReport, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId, LayerRouting
from moesaic.core.view import CPU, GPU, View
from moesaic.kernels.grouping import Group, group_by_expert
from moesaic.machines.real.accelerator import EmulatedAccelerator
from moesaic.machines.real.copies import Copy
from moesaic.machines.real.lane import InlineLane, Lane, ThreadLane
from moesaic.machines.real.probes import time_experts, time_transfer
from moesaic.machines.real.routing import Translator, chosen_by
from moesaic.machines.real.store import ExpertStore
from moesaic.machines.real.transfers import Transfers
from moesaic.models.decoder import Walk
from moesaic.models.experts import Beside, Routed

Replay = Callable[[int], LayerRouting]


class Item(NamedTuple):
    """One expert for a lane: its weights, its tokens, and what to wait for and to announce."""

    expert: int
    block: torch.Tensor
    group: Group
    arrival: Copy | None = None
    computed: Event | None = None


class Costs(NamedTuple):
    """Where a step's time went: the network, the experts (the slower lane of each layer, waiting
    for copies included); what is left is the engine's own."""

    step_ns: int
    network_ns: int
    experts_ns: int

    @property
    def overhead_ns(self) -> int:
        return self.step_ns - self.network_ns - self.experts_ns


class RealMachine:
    """Implements `core.machine.Body`. Begin a step with `begin(step, walk)`; after `finish`,
    `output` is what the walk returned. Drive it in torch's inference mode."""

    def __init__(
        self,
        store: ExpertStore,
        translator: Translator,
        dtype: torch.dtype,
        accelerator: EmulatedAccelerator | None = None,
        threads: int = 1,
        timeline: Timeline | None = None,
    ) -> None:
        self.store, self.accelerator, self.dtype = store, accelerator, dtype
        self.timeline = timeline if timeline is not None else Timeline(enabled=False)
        self.transfers: Transfers | None = None
        self.residency = Residency(store.layers, store.experts, 0)
        self.cpu: Lane = InlineLane()
        self.devices: tuple[str, ...] = (CPU,)
        if accelerator is not None:
            self.transfers = Transfers(store, accelerator, self.timeline)
            self.residency = self.transfers.residency
            self.cpu = ThreadLane("cpu", threads)
            self.devices = (GPU, CPU)
        self._translator = translator
        self._walk: Walk | None = None
        self._shared_ns = 0  # how long shared experts take, by the last layer
        self._shared_since = 0  # when this layer's were submitted; 0: there are none
        self._computed: dict[int, Event] = {}

    def begin(self, step: Step, walk: Walk, replay: Replay | None = None) -> None:
        """`replay` routes instead of the network's own routers."""
        self.abandon()
        self._step, self._walk, self._replay = step, walk, replay
        self._total: torch.Tensor | None = None
        self._reports: list[LayerReport] = []
        self._network_ns = self._experts_ns = 0
        self._start_ns = perf_counter_ns()

    def route(self, layer: int) -> LayerRouting:
        routed = self._advance()
        assert isinstance(routed, Routed), "the network has fewer routed layers"
        assert routed.layer == layer, f"the network is at layer {routed.layer}, not {layer}"
        if self.transfers is not None:
            self.transfers.recall()
        self._submit_beside(routed.beside)
        if self._replay is None:
            self._routed = routed
            return self._translator.routing(routed)
        routing = self._replay(layer)
        self._routed = routed._replace(choice=chosen_by(routing, routed.choice))
        return routing

    def view(self, layer: int) -> View:
        books = self.residency
        flights = self.transfers.flights() if self.transfers is not None else ()
        return View(
            resident=books.resident,
            slots=books.slots,
            held=books.held,
            occupied=books.occupied,
            in_flight=flights,
            devices=self.devices,
            gpu_busy_ns=self._shared_left_ns(),
            pcie_busy_ns=flights[-1].remaining_ns if flights else 0,
        )

    def start(self, plan: LayerPlan, planning_ns: int = 0) -> None:
        choice = self._routed.choice
        groups = group_by_expert(choice.experts, choice.weights)
        now = perf_counter_ns()
        self._report = self._counted(plan, now)
        self._parts: dict[str, torch.Tensor] = {}
        self._busy: dict[str, int] = {}
        on_gpu = plan.queues.get(GPU, ())
        if on_gpu:
            self._submit(GPU, self._accelerator_items(plan, on_gpu, groups))
        on_cpu = plan.queues.get(CPU, ())
        if on_cpu:
            block = self.store.block
            items = [Item(e, block(plan.layer, e), groups[e]) for e in on_cpu]
            self._submit(CPU, items)
        if self.accelerator is not None:
            self.accelerator.lane.wake()
            self.cpu.wake()

    def offer(self, background: tuple[Transfer, ...], lookahead_ns: int = 0) -> None:
        if background:
            assert self.transfers is not None, "nowhere to move an expert to"
            self.transfers.offer(background)

    def wait(self) -> LayerReport:
        if self.accelerator is not None:
            self.accelerator.lane.join()
        self.cpu.join()
        if self.transfers is not None:
            self.transfers.settle()
        parts = list(self._parts.values())
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        self._total = total.to(self._routed.hidden.dtype)
        self._experts_ns += max(self._busy.values())
        report = self._report._replace(end_ns=perf_counter_ns())
        self._reports.append(report)
        return report

    def finish(self) -> StepReport:
        output = self._advance()
        assert isinstance(output, torch.Tensor), "the network has more routed layers"
        self._walk, self.output = None, output
        end = perf_counter_ns()
        self.costs = Costs(end - self._start_ns, self._network_ns, self._experts_ns)
        return StepReport(self._start_ns, end, self._step.tokens, tuple(self._reports))

    def probe(self, device: str, tokens: int, experts: int) -> int:
        return time_experts(self, device, tokens, experts)

    def probe_transfer(self) -> int:
        return time_transfer(self)

    def place(self, experts: list[ExpertId]) -> None:
        """The initial placement."""
        if experts:
            assert self.transfers is not None, "nowhere to place an expert"
            self.transfers.place(experts)

    def abandon(self) -> None:
        """Give up a step that was interrupted: afterwards the machine is ready for another."""
        if self._walk is None:
            return
        self._walk.close()
        self._walk = None
        for lane in (self.cpu, *([self.accelerator.lane] if self.accelerator else [])):
            try:
                lane.join()
            except Exception:  # it was part of the interrupted step, which nobody asks about
                continue
        for event in self._computed.values():  # nobody computes these any more
            event.set()
        if self.transfers is not None:
            self.transfers.drain()

    def close(self) -> None:
        """Stop the threads; the machine is of no use afterwards."""
        self.abandon()
        self.cpu.close()
        if self.accelerator is not None:
            self.accelerator.close()

    def _advance(self) -> Routed | torch.Tensor:
        """On through the network, to the next router or to the end."""
        assert self._walk is not None, "begin a step first"
        started = perf_counter_ns()
        try:
            return self._walk.send(self._total)
        except StopIteration as end:
            output: torch.Tensor = end.value
            return output
        finally:
            ended = perf_counter_ns()
            self._network_ns += ended - started
            self.timeline.add(
                Span(GPU, "dense", started, ended, len(self._reports), -1, self._step.tokens)
            )

    def _submit_beside(self, beside: Beside | None) -> None:
        """The shared experts belong to the accelerator, and run beside the routed ones."""
        self._shared_since = 0
        if beside is None or self.accelerator is None:
            return

        def compute() -> None:
            started = perf_counter_ns()
            beside.result()
            self._shared_ns = perf_counter_ns() - started

        self._shared_since = perf_counter_ns()
        self.accelerator.lane.submit(compute)

    def _shared_left_ns(self) -> int:
        if not self._shared_since:
            return 0
        return max(self._shared_since + self._shared_ns - perf_counter_ns(), 0)

    def _counted(self, plan: LayerPlan, now: int) -> LayerReport:
        if self.transfers is None:
            return LayerReport(plan.layer, now, now, len(plan.queues[CPU]), 0, 0)
        resident = self.residency.resident[plan.layer].tolist()
        served = [expert for queue in plan.queues.values() for expert in queue]
        hits = sum(resident[expert] for expert in served)
        under_way = self.transfers.coming(plan.layer)
        coming = sum(expert in under_way for expert in served)
        moved = len(plan.transfers) * self.store.kernel.block_bytes
        return LayerReport(plan.layer, now, now, len(served), hits, moved, coming)

    def _accelerator_items(
        self, plan: LayerPlan, queue: tuple[int, ...], groups: dict[int, Group]
    ) -> list[Item]:
        assert self.transfers is not None, "there is no accelerator"
        assert self.accelerator is not None, "there is no accelerator"
        demanded = {transfer.expert for transfer in plan.transfers}
        self._computed = {expert: Event() for expert in queue if expert in demanded}
        copies = self.transfers.coming(plan.layer)
        copies |= self.transfers.demand(plan.transfers, self._computed)
        items = []
        for expert in queue:
            copy = copies.get(expert)
            block = copy.target if copy else self.accelerator.block(plan.layer, expert)
            items.append(Item(expert, block, groups[expert], copy, self._computed.get(expert)))
        return items

    def _submit(self, device: str, items: list[Item]) -> None:
        hidden, layer = self._routed.hidden, self._routed.layer
        out = torch.zeros(hidden.shape, dtype=torch.float32)
        self._parts[device] = out

        def compute() -> None:
            started = perf_counter_ns()
            try:
                for item in items:
                    self._compute(device, layer, item, hidden, out)
            finally:
                for item in items:
                    if item.computed is not None:
                        item.computed.set()
            self._busy[device] = perf_counter_ns() - started

        lane = self.cpu
        if device == GPU:
            assert self.accelerator is not None, "there is no accelerator"
            lane = self.accelerator.lane
        lane.submit(compute)

    def _compute(
        self, device: str, layer: int, item: Item, hidden: torch.Tensor, out: torch.Tensor
    ) -> None:
        if item.arrival is not None:
            item.arrival.wait()
        started = perf_counter_ns()
        tokens, weights = item.group
        self.store.kernel.compute(item.block, hidden, tokens, weights, out)
        if item.computed is not None:
            item.computed.set()
        if self.timeline.enabled:
            span = Span(
                device, "expert", started, perf_counter_ns(), layer, item.expert, len(weights)
            )
            self.timeline.add(span)
