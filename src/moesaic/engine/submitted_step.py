"""The step that a machine runs while its caller does what is left to do for the one before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch

from moesaic.engine.request import Request
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass


class Scheduled(NamedTuple):
    """How many tokens of the step belong to this request."""

    request: Request
    tokens: int


class ComputedStep(NamedTuple):
    """What a step was given and what came of it, one piece and one row of output per request, or
    more where all logits of its tokens were wanted."""

    scheduled: list[Scheduled]
    work: ForwardPass
    output: torch.Tensor
    whole: ForwardPass  # with the pieces of requests that have ended since, too

    def of(self, requests: list[Request]) -> ComputedStep | None:
        """The step without requests that have ended since; None: none is left."""
        rows = [row for row, (request, _) in enumerate(self.scheduled) if request in requests]
        if len(rows) == len(self.scheduled):
            return self
        if not rows:
            return None
        scheduled = [self.scheduled[row] for row in rows]
        return ComputedStep(scheduled, self.work.only(rows), self.output[rows], self.whole)


class SubmittedStep:
    """At most one. While it is under way, nothing else may be asked of the runner but what the last
    step was: `settle` first. A submitted step that fails is as if it had not been submitted: its
    requests run in the next step, which finds out which of them is the cause. `on_failure` is
    called for each."""

    def __init__(self, runner: Runner, on_failure: Callable[[], None]) -> None:
        self._runner, self._on_failure = runner, on_failure
        self._under_way: tuple[list[Scheduled], ForwardPass] | None = None
        self._computed: ComputedStep | None = None  # not taken yet

    def submit(self, scheduled: list[Scheduled], work: ForwardPass) -> None:
        """Submit the step where the machine can run it by itself; otherwise do nothing."""
        assert self._under_way is None, "one step at a time"
        assert self._computed is None, "the last one was taken"
        work = self._runner.placed(work)
        if self._runner.refuses(work) is not None:
            return
        self._under_way = scheduled, work  # before: who is interrupted must know what to wait for
        try:
            self._runner.submit(work)
        except Exception:
            self._on_failure()
            with suppress(Exception):
                self._runner.abandon()
            self._under_way = None

    def settle(self) -> None:
        """Wait until the submitted step has ended, if there is one."""
        if self._under_way is None:
            return
        scheduled, work = self._under_way
        try:
            self._computed = ComputedStep(scheduled, work, self._runner.collect(), work)
        except Exception:
            self._on_failure()
        finally:
            self._under_way = None

    def take(self, requests: list[Request]) -> ComputedStep | None:
        """Its results for those of these requests that were in it, when it has ended; None: there
        is nothing."""
        self.settle()
        computed, self._computed = self._computed, None
        return None if computed is None else computed.of(requests)

    def drop(self) -> None:
        """Wait for its end, and forget its results."""
        try:
            self.settle()
        finally:
            self._computed = None
