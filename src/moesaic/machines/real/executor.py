"""What runs forward passes: the verbs that a machine's executors have in common, and the network
that they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from moesaic.core.body import Decider, Probed
from moesaic.core.capabilities import Capabilities
from moesaic.core.report import StepReport, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.machines.real.step_watch import StepWatch
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder


class Network(NamedTuple):
    """What is computed, with which experts."""

    decoder: Decoder
    cache: BlockCache
    store: ExpertStore
    adapter: RoutingAdapter


class StepTimes(NamedTuple):
    """A step's time by part: the network (the routers and their norms are a part of it), the
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


class Executor(Protocol):
    """Runs one pass at a time. It is called in torch's inference mode. A pass that fails or is
    interrupted leaves an executor that `abandon` makes ready for another one. `watch` sees the
    passes that begin from now on, layer by layer, where the executor asks Python at all."""

    name: str
    watch: StepWatch | None

    def refuses(self, work: ForwardPass, brain: Decider) -> str | None:
        """Why it cannot run this pass; None: it can."""
        ...

    def enter(self) -> None:
        """The accelerator's slots are this executor's from now on. Called before every pass."""
        ...

    def leave(self) -> None:
        """Another executor runs next: it finds the slots where every executor looks for them."""
        ...

    def submit(self, number: int, work: ForwardPass, brain: Decider) -> None:
        """Begin a pass that is not refused. It has `number`, and nothing else is asked of the
        executor before it was collected or abandoned."""
        ...

    def collect(self) -> torch.Tensor:
        """The output of the pass that was submitted, when it has ended: the logits of the wanted
        rows [rows, vocabulary]; where `sampling` was given, maybe the next token of every row
        [rows] instead, -1 where logits are not finite. No later pass overwrites it: a caller that
        reads a text keeps the logits of many."""
        ...

    def abandon(self) -> None:
        """Give up the pass that was submitted, if there is one. Calling it again is harmless."""
        ...

    def report(self) -> StepReport:
        """The report of the pass collected last, also when another one is submitted by now. Making
        it may take longer than a GPU should wait."""
        ...

    @property
    def times(self) -> StepTimes:
        """The times of the same pass."""
        ...

    def trace(self) -> object | None:
        """What the same pass has left in memory beside its report, in the executor's own form (see
        `machines/captured/captured_step.py`); copies are those that have ended since the last time
        this was asked for. None: nothing."""
        ...

    @property
    def bytes_moved(self) -> int:
        """The bytes moved over a link since the beginning."""
        ...

    @property
    def busy_ns(self) -> Mapping[str, int]:
        """How long each lane has worked since the beginning, as far as that is known without a
        timeline."""
        ...

    def close(self) -> None:
        """The executor cannot be used afterwards."""
        ...


class FallbackExecutor(Executor, Probed, Protocol):
    """The executor of every machine that refuses only passes which are wanted `ahead`. It places
    the experts and measures what devices and links cost."""

    network: Network
    timeline: Timeline
    residency: Residency

    @property
    def capabilities(self) -> Capabilities: ...

    def place(self, experts: Sequence[ExpertId]) -> None:
        """The initial placement."""
        ...
