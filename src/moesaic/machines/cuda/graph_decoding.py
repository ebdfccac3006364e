"""Captured steps, beside a machine that is driven layer by layer: who has the slots.

Both use the same slots, one at a time. The one that runs next takes them over as the other has left
them; copies under way are waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import torch

from moesaic.core.body import Decider
from moesaic.core.native_brain import NativeBrain
from moesaic.core.report import LayerReport, Span, StepReport
from moesaic.core.rerun_decider import RerunDecider
from moesaic.machines.cuda.captured_spans import CapturedSpans
from moesaic.machines.cuda.captured_step import CapturedStep
from moesaic.machines.cuda.conductor import LayerTimes
from moesaic.machines.cuda.graph_steps import GraphMemory, GraphSteps
from moesaic.machines.cuda.slots import DeviceSlots
from moesaic.machines.cuda.transfers import DeviceTransfers
from moesaic.machines.real.real_machine import ForwardPass
from moesaic.models.decoder import Decoder
from moesaic.models.gate_bank import GateBank
from moesaic.models.kv_cache import ContiguousCache

Native = Callable[[], NativeBrain | None]


class GraphDecoding:
    """`native` is the brain's state and functions, or None where those alone do not decide;
    `brain` is its handle. With `gates`, steps forecast later layers by them."""

    def __init__(
        self, decoder: Decoder, cache: ContiguousCache, memory: GraphMemory, ranks: int,
        brain: Decider, native: Native, gates: GateBank | None = None,
    ) -> None:  # fmt: skip
        self._decoder, self._cache, self._memory, self._ranks = decoder, cache, memory, ranks
        self._brain, self._native, self._gates = brain, native, gates
        self._made: tuple[NativeBrain, GraphSteps] | None = None
        self._moved_before = 0  # bytes, by conductors that are gone
        self.has_slots = False
        self.output = torch.zeros(0)
        self._spans, self._traced = CapturedSpans(memory.store.experts), False
        self._begun: ForwardPass | None = None
        self._times_ns, self._tokens, self._late = (0, 0), 0, False  # of the last step

    def takes(self, work: ForwardPass, brain: Decider) -> bool:
        decides = brain.brain if isinstance(brain, RerunDecider) else brain
        if decides is not self._brain or self._native() is None:
            return False
        if work.reused is not None and not work.reused.complete:
            return False  # the routers of a graph choose for all tokens or for none
        if work.decoded is not None:
            longest = max(work.decoded.positions) + 1
            fits = len(work.decoded.numbers) <= self._steps.batch
        elif work.prompt is not None:
            longest = max(first + tokens for _, first, tokens in work.prompt.segments)
            fits = self._steps.can_read(work.prompt)
        else:
            return False
        return fits and longest <= self._cache.max_length

    def as_replayed(self, work: ForwardPass) -> ForwardPass:
        """The same pass, with what its tokens bring along as a routing to replay."""
        if work.reused is None:
            return work
        return work._replace(replay=work.replayed(self._decoder), reused=None)

    @property
    def _steps(self) -> GraphSteps:
        native = self._native()
        assert native is not None, "a brain that decides natively"
        if self._made is None or self._made[0] is not native:
            assert not self.has_slots, "the brain's state has moved under a conductor"
            self.close()
            steps = GraphSteps(
                self._decoder, self._cache, self._memory, native, self._ranks, self._gates
            )
            self._made = native, steps
        return self._made[1]

    def step(
        self, number: int, work: ForwardPass, brain: Decider, traced: bool = False
    ) -> StepReport:
        """`traced`: its spans will be asked for."""
        if traced and not self._traced:
            self._steps.forget_copies()
        self._traced = traced
        if work.decoded is not None:
            self.begin(number, work, brain)
            self.finish(ahead=not traced, late=False)
        else:
            assert work.prompt is not None, "tokens of some kind"
            steps = self._steps
            self.output = steps.read(number, work, _decider(brain))
            grown = [(slot, tokens) for slot, _, tokens in work.prompt.segments]
            self._ended(work, steps.started_ns, grown, late=False)
        return self.report()

    def can_begin(self, work: ForwardPass, brain: Decider) -> bool:
        """A step of decoded tokens, at once: capturing one takes long."""
        return (
            work.decoded is not None and self.takes(work, brain) and self._steps.is_captured(work)
        )

    def begin(self, number: int, work: ForwardPass, brain: Decider) -> None:
        """A step of decoded tokens, which needs no more of this thread."""
        self._steps.begin(number, work, _decider(brain))
        self._begun = work

    def finish(self, ahead: bool = True, late: bool = True) -> None:
        """Until it has ended; `output` afterwards. `ahead`: another one may follow; `late`: the
        caller has done something else since it began, which is not the step's time."""
        work, self._begun = self._begun, None
        if work is None:  # or an interruption came before that was noted
            self._steps.abandon()
        assert work is not None, "a step was begun"
        assert work.decoded is not None, "of decoded tokens"
        self.output = self._steps.finish(ahead)
        grown = [(slot, 1) for slot in work.decoded.slots]
        self._ended(work, self._steps.started_ns, grown, late)

    def _ended(
        self, work: ForwardPass, started: int, grown: Sequence[tuple[int, int]], late: bool
    ) -> None:
        for slot, tokens in grown:
            self._cache.advance(slot, tokens)
        self._times_ns, self._tokens = (started, perf_counter_ns()), work.step.tokens
        self._late = late

    def report(self) -> StepReport:
        """Of the last step that ended, also while the next one is under way."""
        started, ended = self._times_ns
        times = self._steps.times
        if self._late:
            ended = min(ended, self._steps.ended_ns(times))
        return StepReport(started, ended, self._tokens, self._reports(times))

    def spans(self, engine: bool) -> list[Span]:
        """Of the last step; `engine`: with the conductor's lane."""
        return self._spans.of(self.captured, engine)

    @property
    def captured(self) -> CapturedStep:
        """The last step, with the copies that have ended since this was asked for."""
        return self._steps.trace(self._times_ns[1], self._tokens)

    @property
    def times(self) -> list[LayerTimes]:
        """Of the last step's layers."""
        return self._steps.times

    def _reports(self, times: Sequence[LayerTimes]) -> tuple[LayerReport, ...]:
        size = self._memory.store.kernel.block_bytes
        return tuple(
            LayerReport(layer, t.planned, t.summed, t.on_gpu + t.on_cpu, t.hits, t.transfers * size)
            for layer, t in enumerate(times)
        )

    def take_slots(self, slots: DeviceSlots, transfers: DeviceTransfers) -> None:
        """From the layerwise machine."""
        transfers.settle()
        store = self._memory.store
        self._steps.load_slots(slots.numbers(store.layers, store.experts))
        self.has_slots = True

    def return_slots(self, slots: DeviceSlots, transfers: DeviceTransfers) -> None:
        assert self._made is not None, "the slots were taken"
        slots.hold(self._made[1].slots(), self._memory.store.experts)
        transfers.reset()
        self.has_slots = False

    @property
    def bytes_moved(self) -> int:
        return self._moved_before + (self._made[1].bytes_moved if self._made else 0)

    def close(self) -> None:
        if self._made is not None:
            (_, steps), self._made = self._made, None  # closed once, even if that fails
            self._moved_before += steps.bytes_moved
            steps.close()


def _decider(brain: Decider) -> RerunDecider | None:
    """Where tokens may run again."""
    return brain if isinstance(brain, RerunDecider) else None
