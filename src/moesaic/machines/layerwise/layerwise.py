"""Passes driven layer by layer from Python, in real time: the network in PyTorch, and experts on
whatever devices there are. What all ways to compute experts share; it takes every network.

The caller's thread drives the pass and does the bookkeeping; where experts are computed is up to
each subclass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import ClassVar

import torch

from moesaic.core.body import Decider, LayerBody, Probed
from moesaic.core.capabilities import Capabilities
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import LayerReport, Span, StepReport, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.machines.layerwise.engine_spans import EngineSpans
from moesaic.machines.loop import serve_layer
from moesaic.machines.real.executor import Network, StepTimes
from moesaic.machines.real.forward_pass import ForwardPass, Replay
from moesaic.machines.real.routing_adapter import chosen_by
from moesaic.machines.real.step_watch import StepWatch
from moesaic.models.experts.expert_service import RoutedTokens
from moesaic.models.token_batch import Segment


class Layerwise(LayerBody, Probed):
    """A `FallbackExecutor`, and the network's `ExpertService`: what happens between a router and
    the sum of its experts is up to each subclass."""

    name = "layerwise"
    capabilities: ClassVar[Capabilities]
    dense_on = GPU  # the device of everything but the routed experts

    def __init__(
        self, network: Network, residency: Residency, timeline: Timeline | None = None
    ) -> None:
        self.network = network
        self.decoder, self.cache, self.store, self.adapter = network
        self.dtype = self.decoder.dtype
        self.timeline = timeline if timeline is not None else Timeline(enabled=False)
        self.residency = residency
        self.watch: StepWatch | None = None
        self._lane_ns = Counter[str]()  # what lanes have worked
        self._running = False
        self._total: torch.Tensor | None = None  # of the layer just computed, for the network

    def refuses(self, work: ForwardPass, brain: Decider) -> str | None:
        return "passes are driven by the calling thread" if work.ahead else None

    def enter(self) -> None:
        """The slots' table is this executor's own."""

    def leave(self) -> None:
        """What takes the slots next waits for the copies under way."""

    def submit(self, number: int, work: ForwardPass, brain: Decider) -> None:
        """The whole pass."""
        self.abandon()
        self._running = True
        self._begin(number, work)
        if self.timeline.enabled and self.timeline.engine:
            brain = EngineSpans(brain, self.timeline, lambda: self._advanced_ns)
        self._brain = brain if self.watch is None else self.watch.around(brain)
        self._run(work)
        self._finish()
        self._running = False

    def collect(self) -> torch.Tensor:
        return self._output

    def report(self) -> StepReport:
        return self._step_report

    @property
    def times(self) -> StepTimes:
        return self._times

    def trace(self) -> None:
        """Nothing is captured."""
        return

    def abandon(self) -> None:
        if self._running:
            self._clear()
            self._running = False  # last: this may be interrupted too, and is then done again

    def close(self) -> None:
        self.abandon()

    @property
    def bytes_moved(self) -> int:
        return 0

    @property
    def busy_ns(self) -> Mapping[str, int]:
        return self._lane_ns

    def place(self, experts: Sequence[ExpertId]) -> None:
        """The initial placement."""
        assert not experts, "nowhere to place an expert"

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        """The network has reached a router, and goes on with the sum of the experts."""
        self._network_ran()
        layer = len(self._reports)
        assert routed.layer == layer, f"the network is at layer {routed.layer}, not {layer}"
        self._router_ns += self._advanced_ns - routed.start_ns
        self._arrived(routed)
        routing = self._route(routed)
        if self._work.listener is not None:
            self._work.listener(routing)
        serve_layer(self, self._brain, routing)
        total, self._total = self._total, None
        assert total is not None, "the layer was computed"
        self._resumed_ns = perf_counter_ns()
        return total

    @property
    def can_forecast(self) -> bool:
        """Whether later layers are forecast: by their gates, or by recorded routing in a replay."""
        if self._replay is not None:
            return bool(self._routing.forecasts)
        return self.adapter.can_forecast(self._routing.layer)

    def forecasts(self, depth: int) -> Sequence[Forecast]:
        if self._replay is not None:
            return self._routing.forecasts[:depth]
        return self.adapter.forecasts(self._routed, depth, self._number)

    def _begin(self, number: int, work: ForwardPass) -> None:
        self._number, self._work, self._step, self._replay = number, work, work.step, work.replay
        self._total = None
        self._reports: list[LayerReport] = []
        self._network_ns = self._experts_ns = self._router_ns = self._replay_ns = 0
        self._start_ns = self._resumed_ns = perf_counter_ns()

    def _run(self, work: ForwardPass) -> None:
        """The network, from tokens to logits."""
        device = self.decoder.device
        tokens = torch.tensor(work.numbers, device=device)
        segments = [Segment(each.slot, len(each.tokens)) for each in work.pieces]
        counts = None if work.counts is None else torch.from_numpy(work.counts).to(device)
        reused = None if work.reused is None else work.reused.to(device)
        hidden = self.decoder.forward(tokens, segments, self.cache, self, counts, reused)
        if len(hidden) > len(work.wanted):
            hidden = hidden[list(work.wanted)]
        self._output = self.decoder.logits(hidden).cpu()  # samplers and gates are there
        self._network_ran()

    def _route(self, routed: RoutedTokens) -> LayerRouting:
        """The routing that counts, as the brain reads it."""
        if self._replay is None:
            self._routed = routed
            self._routing = self.adapter.routing(routed, self._number)
        else:
            self._routing = self._replayed(routed, self._replay)
        return self._routing

    def _replayed(self, routed: RoutedTokens, replay: Replay) -> LayerRouting:
        """Replace the router's choice by the replayed one; the time is accounted separately."""
        started = perf_counter_ns()
        routing = replay(routed.layer).at_step(self._number)
        if routed.native is not None and routing.counts is None and routed.choice.counts is None:
            routed.native.replace(routing.experts, routing.weights)
            self._routed = routed
        else:
            choice = chosen_by(routing, routed.choice)
            self._routed = routed._replace(choice=choice, native=None)
        self._replay_ns += perf_counter_ns() - started
        return routing

    def _finish(self) -> None:
        self._ended()
        self._count_busy()
        end = perf_counter_ns()
        parts = (self._network_ns, self._experts_ns, self._router_ns, self._replay_ns)
        self._times = StepTimes(end - self._start_ns, *parts)
        reports = tuple(self._reports)
        self._step_report = StepReport(self._start_ns, end, self._step.tokens, reports)

    def _network_ran(self) -> None:
        """Record the network's time since it continued."""
        self._advanced_ns = ended = perf_counter_ns()
        self._network_ns += ended - self._resumed_ns
        if self.timeline.enabled:
            self._record_dense(self._resumed_ns, ended)

    def _arrived(self, routed: RoutedTokens) -> None:
        """Called when the network has reached a router."""

    def _clear(self) -> None:
        """Finish what an interrupted pass has started."""

    def _ended(self) -> None:
        """Called when the network has returned."""

    def _count_busy(self) -> None:
        """Add what the lanes have worked in this pass: here, the CPU does everything."""
        self._lane_ns[CPU] += self._network_ns + self._experts_ns

    def _record_dense(self, started_ns: int, ended_ns: int) -> None:
        """The network ran from one router to the next in this time."""
        layer, tokens = len(self._reports), self._step.tokens
        self.timeline.add(Span(self.dense_on, "dense", started_ns, ended_ns, layer, -1, tokens))
