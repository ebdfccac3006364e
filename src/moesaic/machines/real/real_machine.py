"""What all real machines share: a forward pass, layer by layer, in real time. Decides nothing.

The caller's thread drives the pass and does the bookkeeping; where experts are computed is up to
each machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.body import Decider, LayerwiseBody, Probed
from moesaic.core.capabilities import Capabilities
from moesaic.core.native_brain import NativeBrain
from moesaic.core.offloading import GPU
from moesaic.core.report import LayerReport, Span, StepReport, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.step import Step
from moesaic.machines.loop import run_layers
from moesaic.machines.real.engine_spans import EngineSpans
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.routing_adapter import RoutingAdapter, chosen_by
from moesaic.machines.real.row_sampling import RowSampling
from moesaic.models.decoder import Decoder, ForwardGenerator
from moesaic.models.expert_service import RoutedTokens
from moesaic.models.kv_cache import ContiguousCache
from moesaic.models.reused_routing import ReusedRouting

Replay = Callable[[int], LayerRouting]


class StepTimes(NamedTuple):
    """Where a step's time went: the network (the routers and their norms are a part of it), the
    experts (the slower lane of each layer, waiting for copies included); what is left is the
    engine's own."""

    step_ns: int
    network_ns: int
    experts_ns: int
    router_ns: int = 0
    replay_ns: int = 0  # replacing the router's choice by a trace's

    @property
    def overhead_ns(self) -> int:
        return self.step_ns - self.network_ns - self.experts_ns - self.replay_ns


class DecodedTokens(NamedTuple):
    """One new token of every sequence: its number, its slot in the KV cache, its position."""

    numbers: tuple[int, ...]
    slots: tuple[int, ...]
    positions: tuple[int, ...]


class PromptTokens(NamedTuple):
    """New tokens of several sequences, one sequence after the other."""

    numbers: tuple[int, ...]
    segments: tuple[tuple[int, int, int], ...]  # slot in the KV cache, first position, tokens
    wanted: tuple[int, ...]  # rows whose logits are wanted


class ForwardPass(NamedTuple):
    """The work of one step: its tokens, the network's generator, and the routing to replay instead
    of the network's own (None: its own). The same for a machine that does not need the generator:
    `decoded` where every sequence brings one token, else `prompt`. `counts` [tokens]: how many
    experts each token uses; None: all of top-k. `sampling`: of each wanted row; the next tokens
    will do instead of logits, where the machine finds them sooner than its caller. `reused`: tokens
    that bring their routing along; the generator knows of them, and without it a pass can run only
    where `reused` is complete."""

    step: Step
    generator: ForwardGenerator
    replay: Replay | None = None
    decoded: DecodedTokens | None = None
    prompt: PromptTokens | None = None
    counts: NDArray[np.int64] | None = None
    sampling: tuple[RowSampling, ...] | None = None
    reused: ReusedRouting | None = None

    def replayed(self, decoder: Decoder) -> Replay | None:
        """What replaces the routers' choice where the generator does not run; None: nothing."""
        if self.replay is not None or self.reused is None:
            return self.replay
        return self.reused.replay(decoder.architecture.router, decoder.dtype)


class RealMachine(LayerwiseBody, Probed):
    """Implements `core.body.Body`, driven layer by layer; what happens between `route` and `finish`
    is up to each machine. After a step, `output` is what the generator returned; where `sampling`
    was given, maybe the next token of every row [rows] instead, -1 where logits are not finite.
    No later step overwrites it: a caller that reads a text keeps the logits of many passes. Call it
    in torch's inference mode."""

    capabilities: ClassVar[Capabilities]
    dense_on = GPU  # the device of everything but the routed experts
    layerwise_because: str | None = "steps are driven from Python"  # None: they are captured

    def __init__(
        self,
        store: ExpertStore,
        adapter: RoutingAdapter,
        dtype: torch.dtype,
        residency: Residency,
        timeline: Timeline | None = None,
    ) -> None:
        self.store, self.dtype = store, dtype
        self.timeline = timeline if timeline is not None else Timeline(enabled=False)
        self.residency = residency
        self._adapter = adapter
        self._generator: ForwardGenerator | None = None
        self._steps = -1  # the number of the step under way
        self._total: torch.Tensor | None = None  # of the layer just computed, for the network

    def step(self, work: ForwardPass, brain: Decider) -> StepReport:
        self.begin(work)
        if self.timeline.enabled and self.timeline.engine:
            brain = EngineSpans(brain, self.timeline, lambda: self._advanced_ns)
        return run_layers(self, brain, self.store.layers)

    def submit(self, work: ForwardPass, brain: Decider) -> bool:
        """Begin a step that then runs without the calling thread, where this machine can: `collect`
        it before anything else is asked of the machine. False: it cannot, and nothing was done."""
        return False

    def collect(self) -> torch.Tensor:
        """The output of the step that was submitted, when it has ended."""
        raise NotImplementedError

    def collected_report(self) -> StepReport:
        """Of the step collected last, also when another one is submitted by now. Making it takes
        longer than a GPU should wait."""
        raise NotImplementedError

    def begin(self, work: ForwardPass) -> None:
        self.abandon()
        self._steps += 1
        self._step, self._generator, self._replay = work[:3]
        self._total = None
        self._reports: list[LayerReport] = []
        self._network_ns = self._experts_ns = self._router_ns = self._replay_ns = 0
        self._start_ns = perf_counter_ns()

    def route(self, layer: int) -> LayerRouting:
        routed = self._advance()
        assert isinstance(routed, RoutedTokens), "the network has fewer routed layers"
        assert routed.layer == layer, f"the network is at layer {routed.layer}, not {layer}"
        self._router_ns += self._advanced_ns - routed.start_ns
        self._arrived(routed)
        if self._replay is None:
            self._routed = routed
            self._routing = self._adapter.routing(routed, self._steps)
        else:
            self._routing = self._replayed(layer, routed, self._replay)
        return self._routing

    def _replayed(self, layer: int, routed: RoutedTokens, replay: Replay) -> LayerRouting:
        """Replace the router's choice by the replayed one; the time is accounted separately."""
        started = perf_counter_ns()
        routing = replay(layer).at_step(self._steps)
        if routed.native is not None and routing.counts is None and routed.choice.counts is None:
            routed.native.replace(routing.experts, routing.weights)
            self._routed = routed
        else:
            choice = chosen_by(routing, routed.choice)
            self._routed = routed._replace(choice=choice, native=None)
        self._replay_ns += perf_counter_ns() - started
        return routing

    @property
    def can_forecast(self) -> bool:
        """By the gates of later layers; where routing is replayed, by what was recorded."""
        if self._replay is not None:
            return bool(self._routing.forecasts)
        return self._adapter.can_forecast(self._routing.layer)

    def forecasts(self, depth: int) -> Sequence[Forecast]:
        if self._replay is not None:
            return self._routing.forecasts[:depth]
        return self._adapter.forecasts(self._routed, depth, self._steps)

    def attach(
        self,
        decoder: Decoder,
        cache: ContiguousCache,
        brain: Decider,
        native: Callable[[], NativeBrain | None],
    ) -> None:
        """Once, before the first step: what a machine needs that runs decode steps without the
        generator and without Python. `native` gives the brain's state and functions, or None
        where those alone do not decide."""

    def rank_experts(self, ranks: int) -> None:
        """From now on every routing has at least so many ranks, also where nothing is decided."""
        self._adapter.rank_at_least(ranks)

    def drive_layerwise(self, because: str) -> None:
        """From now on no step is captured."""

    @property
    def layer_times(self) -> Sequence[Any]:
        """Of the last step's layers, by a native conductor; none where it did not run."""
        return ()

    @property
    def captured_step(self) -> Any:
        """What the last step left behind, where it was captured; asked for after every step."""
        return None

    def place(self, experts: Sequence[ExpertId]) -> None:
        """The initial placement."""
        assert not experts, "nowhere to place an expert"

    def finish(self) -> StepReport:
        output = self._advance()
        assert isinstance(output, torch.Tensor), "the network has more routed layers"
        self._generator, self.output = None, output
        self._ended()
        end = perf_counter_ns()
        parts = (self._network_ns, self._experts_ns, self._router_ns, self._replay_ns)
        self.times = StepTimes(end - self._start_ns, *parts)
        return StepReport(self._start_ns, end, self._step.tokens, tuple(self._reports))

    def abandon(self) -> None:
        """Give up a step that was interrupted: afterwards the machine is ready for another."""
        if self._generator is not None:
            self._generator.close()
            self._clear()
            self._generator = None  # last: this may be interrupted too, and is then done again

    @property
    def bytes_moved(self) -> int:
        """Over a link, since the beginning."""
        return 0

    def close(self) -> None:
        """The machine cannot be used afterwards."""
        self.abandon()

    def _arrived(self, routed: RoutedTokens) -> None:
        """Called when the network has reached a router."""

    def _clear(self) -> None:
        """Finish what an interrupted step has started."""

    def _ended(self) -> None:
        """Called when the network has returned."""

    def _record_dense(self, started_ns: int, ended_ns: int) -> None:
        """The network ran from one router to the next in this time."""
        layer, tokens = len(self._reports), self._step.tokens
        self.timeline.add(Span(self.dense_on, "dense", started_ns, ended_ns, layer, -1, tokens))

    def _advance(self) -> RoutedTokens | torch.Tensor:
        """Run the network up to the next router or to the end."""
        assert self._generator is not None, "begin a step first"
        started = perf_counter_ns()
        try:
            return self._generator.send(self._total)
        except StopIteration as end:
            output: torch.Tensor = end.value
            return output
        finally:
            self._advanced_ns = ended = perf_counter_ns()
            self._network_ns += ended - started
            if self.timeline.enabled:
                self._record_dense(started, ended)
