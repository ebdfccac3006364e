"""One model on one real machine: its experts, and the executors that run passes over it. Decides
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Protocol

import torch

from moesaic.core.body import Decider, Probed
from moesaic.core.report import StepReport
from moesaic.core.routing import ExpertId
from moesaic.machines.real.executor import Executor, FallbackExecutor, StepTimes
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.machines.real.step_watch import StepWatch


class Guard(Protocol):
    """What stands around the passes of a device that can fail as a whole; `broken`: why it has."""

    broken: str | None

    def check(self) -> None:
        """Raise where no further pass can run."""
        ...

    def explained(self) -> AbstractContextManager[None]:
        """An error of the device that is raised inside leaves with what it means."""
        ...


class Machine(Probed):
    """A `Body` in real time. A pass is run by the fastest executor that does not refuse it;
    `layerwise` refuses only passes that are wanted `ahead`."""

    def __init__(
        self, layerwise: FallbackExecutor, why_layerwise: str, guard: Guard | None = None
    ) -> None:
        """`why_layerwise`: why there is no faster executor, until one is added."""
        self.layerwise, self._guard = layerwise, guard
        self.executors: list[Executor] = [layerwise]
        self.why_layerwise: str | None = why_layerwise  # None: there is a faster one
        self.store, self.timeline = layerwise.network.store, layerwise.timeline
        self.residency, self.capabilities = layerwise.residency, layerwise.capabilities
        self.last: Executor | None = None  # that ran a pass to its end
        self._active: Executor = layerwise
        self._under_way: Executor | None = None
        self._chosen: tuple[ForwardPass, Executor] | None = None  # for a pass just asked about
        self._passes = -1  # the number of the last one
        self._moved_before = 0  # bytes, by executors that are gone
        self._busy_before = Counter[str]()

    def add(self, executor: Executor) -> None:
        """It is asked before all others from now on."""
        self.executors.insert(0, executor)
        self.why_layerwise, self._chosen = None, None

    def use_only_layerwise(self, because: str) -> None:
        """Run every pass layer by layer from now on."""
        self.abandon()
        for executor in self.executors[:-1]:
            executor.leave()
            self._moved_before += executor.bytes_moved
            self._busy_before.update(executor.busy_ns)
            executor.close()
        self.executors, self.why_layerwise = [self.layerwise], because
        self._active, self.last, self._chosen = self.layerwise, None, None

    def refuses(self, work: ForwardPass, brain: Decider) -> str | None:
        """Why the fastest executor cannot run this pass, if no other can either."""
        found, why = self._find(work, brain)
        self._chosen = None if found is None else (work, found)
        return why if found is None else None

    def step(self, work: ForwardPass, brain: Decider) -> StepReport:
        self.run(work, brain)
        return self.report()

    def run(self, work: ForwardPass, brain: Decider) -> torch.Tensor:
        self.submit(work, brain)
        return self.collect()

    def submit(self, work: ForwardPass, brain: Decider) -> None:
        """Begin a pass that is not refused: `collect` brings its output, and nothing else is asked
        before."""
        if self._guard is not None:
            self._guard.check()
        try:
            self.abandon()
            executor = self._choose(work, brain)
            self._passes += 1
            self._under_way = executor
            if executor is not self._active:
                self._active.leave()
                self._active = executor
            executor.enter()
            executor.submit(self._passes, work, brain)
        except BaseException:
            with self._explained():
                raise

    def _choose(self, work: ForwardPass, brain: Decider) -> Executor:
        """The answer to a caller that has just asked about this pass is used, once: finding another
        would cost the GPU time between two tokens."""
        chosen, self._chosen = self._chosen, None
        if chosen is not None and chosen[0] is work:
            return chosen[1]
        found, why = self._find(work, brain)
        assert found is not None, why
        return found

    def _find(self, work: ForwardPass, brain: Decider) -> tuple[Executor | None, str | None]:
        """The executor that runs a pass, and why the fastest one does not."""
        first: str | None = None
        for executor in self.executors:
            why = executor.refuses(work, brain)
            if why is None:
                return executor, first
            first = first or why
        return None, first

    def collect(self) -> torch.Tensor:
        assert self._under_way is not None, "a pass was submitted"
        try:
            output = self._under_way.collect()
        except BaseException:
            with self._explained():
                raise
        self.last, self._under_way = self._under_way, None
        return output

    def abandon(self) -> None:
        """Give up a pass that was submitted and not collected: afterwards the machine is ready for
        another."""
        if self._under_way is not None:
            self._under_way.abandon()
            self._under_way = None  # last: this may be interrupted, too, and is then done again

    def report(self) -> StepReport:
        """The report of the pass collected last."""
        return self._last.report()

    @property
    def times(self) -> StepTimes:
        return self._last.times

    def trace(self) -> object | None:
        """What the pass collected last has left behind."""
        return self._last.trace()

    @property
    def _last(self) -> Executor:
        assert self.last is not None, "a pass was collected"
        return self.last

    def watch(self, watch: StepWatch | None) -> None:
        """Show passes that begin from now on to it; None: to none any more."""
        for executor in self.executors:
            executor.watch = watch

    def rank_experts(self, ranks: int) -> None:
        """Give every routing from now on at least so many ranks, also where nothing is decided."""
        self.layerwise.network.adapter.rank_at_least(ranks)

    def place(self, experts: Sequence[ExpertId]) -> None:
        """The initial placement."""
        self.layerwise.place(experts)

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        return self.layerwise.probe(device, tokens, experts, placement)

    def probe_slowdown(self, device: str) -> int:
        return self.layerwise.probe_slowdown(device)

    def probe_transfer(self, link: str | None = None) -> int:
        return self.layerwise.probe_transfer(link)

    @property
    def bytes_moved(self) -> int:
        """The bytes moved over a link since the beginning."""
        return self._moved_before + sum(executor.bytes_moved for executor in self.executors)

    @property
    def busy_ns(self) -> Mapping[str, int]:
        """How long each lane has worked since the beginning (see `Executor`)."""
        busy = Counter(self._busy_before)
        for executor in self.executors:
            busy.update(executor.busy_ns)
        return busy

    def close(self) -> None:
        """The machine cannot be used afterwards. Everything is released, whatever fails."""
        with ExitStack() as after:
            for executor in reversed(self.executors):
                after.callback(executor.close)
            if self._guard is None or self._guard.broken is None:
                self.abandon()

    def _explained(self) -> AbstractContextManager[None]:
        return nullcontext() if self._guard is None else self._guard.explained()
