"""Layer by layer with a GPU, driven from Python: any pass of any model.

The network runs on the device. Its routing and its hidden states are copied to the host, where the
brain decides and the CPU computes its experts; the GPU computes the others meanwhile, and both sums
are added on the device. The host waits for the GPU only where it needs the routing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter_ns

import numpy as np
import torch

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU, OFFLOADING, PCIE
from moesaic.core.report import LayerReport, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId, Forecast
from moesaic.core.view import View
from moesaic.machines.accelerators import CUDA
from moesaic.machines.layerwise.contention import LinkCopies, slowdown
from moesaic.machines.layerwise.cpu_part import CpuPart
from moesaic.machines.layerwise.device_experts import device_experts
from moesaic.machines.layerwise.device_probes import time_copy, time_experts
from moesaic.machines.layerwise.gpu_queue import GpuQueue
from moesaic.machines.layerwise.gpu_spans import GpuSpans
from moesaic.machines.layerwise.layer_counts import count_layer
from moesaic.machines.layerwise.layerwise import Layerwise
from moesaic.machines.layerwise.packed_routing import PackedRoutingAdapter
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.real.device_slots import DeviceSlots
from moesaic.machines.real.executor import Network
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.machines.real.gpu_faults import GpuGuard
from moesaic.machines.real.ledger import Ledger
from moesaic.machines.real.pinned import pinned
from moesaic.machines.real.stream_copier import StreamCopier
from moesaic.machines.real.streams import Streams
from moesaic.models.experts.expert_service import RoutedTokens

_SHORT_STEP = 256  # tokens
_CONTENDING = 4  # experts of one call of the CPU while the link copies


class GpuLayers(Layerwise):
    """`slots` experts have a slot on the device of `streams`; `tokens` is the longest pass, and
    `threads` is how many cores compute the CPU's experts. `guard` is around every pass."""

    capabilities = CUDA

    def __init__(
        self,
        network: Network,
        adapter: PackedRoutingAdapter,
        streams: Streams,
        slots: int,
        tokens: int,
        top_k: int,
        threads: int = 1,
        timeline: Timeline | None = None,
    ) -> None:
        store = network.store
        residency = Residency(OFFLOADING, store.layers, store.experts, (slots, None))
        super().__init__(network._replace(adapter=adapter), residency, timeline)
        self.streams, self.packed, self.threads = streams, adapter, threads
        self.tokens, self._top_k = tokens, top_k
        self.guard = GpuGuard(streams)
        size = store.kernel.block_bytes
        staging = CUDA.staging_slots(store.experts, size)
        self.slots = DeviceSlots(slots, staging, size, streams.device)
        self.spans = GpuSpans(streams, self.timeline)
        self.copier = StreamCopier(store, streams)
        self.ledger = Ledger(store, self.slots, residency, self.copier, self.timeline)
        self.experts = device_experts(store.kernel, tokens, top_k, store.experts, streams)
        self._gpu = GpuQueue(self.experts, self.slots, self.ledger, streams, self.spans)
        self._pinned = pinned(store.block(0, 0).data_ptr(), store.bytes, streams.device)
        beside = max(threads - 1, 1)  # the calling thread drives the GPU
        self.cpu = CpuPart(store, beside, streams, self.timeline)  # last: it starts a thread

    def _begin(self, number: int, work: ForwardPass) -> None:
        super()._begin(number, work)
        self.spans.begin()
        self._cpu_ns: dict[int, int] = {}

    def view(self, layer: int) -> View:
        in_flight = self.ledger.in_flight()
        link_ns = in_flight[-1].remaining_ns if in_flight else 0
        named = self.ledger.to_slots(in_flight, layer)
        return View.of(self.residency, named, (0, 0, link_ns))

    def start(self, plan: LayerPlan) -> None:
        """The CPU first: its thread needs the interpreter to begin, and then no more."""
        coming, size = self.ledger.coming(plan.layer), self.store.kernel.block_bytes
        self._report = count_layer(plan, self.residency, coming, size, perf_counter_ns())
        on_cpu, on_gpu = plan.queues.get(CPU, ()), plan.queues.get(GPU, ())
        self._on_gpu = bool(on_gpu)
        self._choose()
        if on_cpu:
            ragged = self._routing.counts is not None
            self.cpu.start(plan.layer, on_cpu, self._hidden, self._chosen, ragged)
        self._gpu.demand(plan)
        if on_gpu or plan.transfers:
            pairs = Pairs(self._chosen[0].numpy(), self._chosen[1].numpy())
            self._gpu.start(on_gpu, self._routed.hidden, pairs)

    @property
    def prefetches(self) -> bool:
        """Whether to prefetch: in a long step the link has no useful idle time."""
        return self._step.tokens <= _SHORT_STEP

    def offer(self, background: tuple[Move, ...]) -> None:
        self.ledger.offer(background)

    def forecasts(self, depth: int) -> Sequence[Forecast]:
        """Forecast beside the experts: only the residual stream is waited for."""
        if self._replay is not None:
            return super().forecasts(depth)
        with self.streams.aside(self._routed_mark):
            return super().forecasts(depth)

    def wait(self) -> LayerReport:
        """Wait until the CPU has ended; the GPU's part is awaited by what is computed next."""
        self.ledger.poll()
        on_cpu = self.cpu.join()
        self.ledger.poll()
        self.spans.network_from_here()
        self._total = self._sum(on_cpu).to(self._routed.hidden.dtype)
        layer = self._report.layer
        cpu_ns = self._cpu_ns[layer] = self.cpu.busy_ns if on_cpu is not None else 0
        report = self._report._replace(end_ns=perf_counter_ns(), cpu_ns=cpu_ns)
        self._reports.append(report)
        return report

    def place(self, experts: Sequence[ExpertId]) -> None:
        self.ledger.place(experts)

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        if device == CPU:
            return self.cpu.probe(self.dtype, tokens, experts)
        return self._probe_together(tokens) * experts

    def _probe_together(self, tokens: int) -> int:
        """An expert's share of a launch of several: the device never computes one alone where it
        can help it. A token's experts are as many as it has; those of several tokens come with as
        many others as there may be, which is what fills the device."""
        most = max(self.tokens * self._top_k // tokens, 1)
        count = min(self._top_k if tokens == 1 else self.store.experts, most)
        return round(self.probe_launch(tokens, count) / count)

    def probe_launch(self, tokens: int, experts: int) -> int:
        """Nanoseconds that the device takes for so many experts of so many tokens each in one
        launch."""
        ranks = min(self._top_k, experts)
        rows = -(-tokens * experts // ranks)
        chosen = (np.arange(rows * ranks, dtype=np.int64) % experts).reshape(rows, ranks)
        width = self.store.kernel.shape.hidden
        hidden = torch.randn((rows, width), generator=torch.Generator().manual_seed(0))
        on_device = self.streams.upload(hidden.to(self.dtype))
        return time_experts(self.experts, self.slots.slab, on_device, chosen, self.streams)

    def probe_slowdown(self, device: str) -> int:
        assert device == CPU, "the GPU reads its own memory"
        call = self.cpu.repeated(self.dtype, tokens=1, experts=_CONTENDING)
        copies = LinkCopies(self.store, self.slots, self.streams, self.copier.duration_ns)
        with torch.inference_mode():
            return slowdown(call, copies)

    def probe_transfer(self, link: str | None = None) -> int:
        self.copier.duration_ns = time_copy(self.store, self.slots, self.streams)
        return self.copier.duration_ns

    @property
    def bytes_moved(self) -> int:
        return self.ledger.bytes_moved

    @property
    def busy_ns(self) -> Mapping[str, int]:
        return Counter(self._lane_ns) + Counter({PCIE: self.ledger.busy_ns})

    def _count_busy(self) -> None:
        """By the marks that were resolved when the pass had ended."""
        self._lane_ns[CPU] += sum(self._cpu_ns.values())
        self._lane_ns[GPU] += self.spans.network_ns + sum(self.spans.experts_ns.values())

    def close(self) -> None:
        """Everything is released, whatever fails on the way."""
        with ExitStack() as after:
            if self._pinned is not None:
                after.callback(self._pinned.close)
                self._pinned = None
            after.callback(self.cpu.close)
            if self.guard.broken is None:  # else there is nothing to wait for
                super().close()
                self.streams.synchronize()

    def _arrived(self, routed: RoutedTokens) -> None:
        """No new transfer starts from here on. The routing travels first; while the brain decides,
        the hidden states follow and the shared experts are computed."""
        self.ledger.cancel_background()
        self._routed_mark = self.streams.mark()
        if self._replay is None:
            self.packed.send(routed)
        self._hidden = self.streams.download(routed.hidden)
        if routed.shared_experts is not None:
            routed.shared_experts.result()
        self.spans.network(routed.layer, self._step.tokens)

    def _choose(self) -> None:
        """The routing that counts, with its weights as the router rounds them."""
        experts, weights = self._routing.experts, self._routing.weights
        if self._replay is not None:
            weights = self._routed.choice.weights.float().numpy()
        weights = np.ascontiguousarray(weights, dtype=np.float32)
        self._chosen = torch.from_numpy(experts), torch.from_numpy(weights)

    def _sum(self, on_cpu: torch.Tensor | None) -> torch.Tensor:
        """The sum of both devices, fp32 on the device."""
        added = None if on_cpu is None else self.streams.upload_pinned(on_cpu)
        if not self._on_gpu:
            assert added is not None, "a device computed the layer"
            return added
        total = self._gpu.total()
        return total if added is None else total + added

    def _ended(self) -> None:
        self.spans.network(-1, self._step.tokens)
        self.streams.synchronize()
        self.spans.resolve()
        self._network_ns = self.spans.network_ns
        on_gpu = self.spans.experts_ns
        self._experts_ns = sum(max(ns, on_gpu.get(at, 0)) for at, ns in self._cpu_ns.items())

    def _record_dense(self, started_ns: int, ended_ns: int) -> None:
        """The network's time is measured by marks on the device (see `gpu_spans.py`)."""

    def _clear(self) -> None:
        self.cpu.reset()
        self.ledger.reset()
