"""Continuous batching: requests join and leave between steps.

Whoever writes contributes its one new token to every step; what is left of the step goes to those
who still read their prompts, first come, first served, so a long prompt never keeps others from
writing. Knows neither text nor people: those are the requests' and the callers' business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import torch

from moesaic.core.errors import BrokenModel
from moesaic.engine.completion import Chunk
from moesaic.engine.gating import confidence_of
from moesaic.engine.recording import RecordingBody
from moesaic.engine.request import Request
from moesaic.engine.run_stats import Tally
from moesaic.engine.runner import Feed, Runner
from moesaic.engine.sampling.sampler import Sampler


class Update(NamedTuple):
    """What a step brought one request."""

    request: Request
    chunk: Chunk


class Share(NamedTuple):
    """So many tokens of a step are this request's."""

    request: Request
    tokens: int


class Batcher:
    """Of one thread. A step that fails, or is interrupted, ends all requests; after that the
    batcher takes new ones."""

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        sequences: int,
        max_step_tokens: int,
        recording: RecordingBody | None = None,
    ) -> None:
        self.tally = Tally(runner)
        self._runner, self._sampler = runner, sampler
        self._recording = recording
        if recording is not None:
            runner.body = recording
        self._step_tokens = max_step_tokens
        # Never more sequences than tokens: whoever still reads then gets at least one per step.
        self._slots = range(min(sequences, max_step_tokens))
        self._free = list(self._slots)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running)

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def step(self) -> list[Update]:
        """One pass through the model; what it brought those who got a token. Nothing, if there
        are no requests."""
        try:
            self._join()
            return self._step() if self._running else []
        except BaseException as error:
            if self._recording is not None:
                self._recording.abandon(error)
            self.cancel_all()
            raise

    def cancel(self, request: Request) -> None:
        """It ends now, between steps. Nothing happens if it has ended."""
        if request in self._running:
            request.cancel()
            self._leave(request)
        elif request in self._waiting:
            request.cancel()
            self._waiting.remove(request)

    def cancel_all(self) -> None:
        """Also where a step was interrupted: nothing is left of it."""
        ended = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self._free = list(self._slots)
        for slot in self._slots:
            self._runner.forget(slot)
        for request in ended:
            if request.finish_reason is None:
                request.cancel()
            self._forget(request)

    def _join(self) -> None:
        while self._waiting and self._free:
            request = self._waiting.popleft()
            request.slot = self._free.pop(0)
            self._running.append(request)

    def _step(self) -> list[Update]:
        shares = self._shares()
        feeds = [_feed(request, count) for request, count in shares]
        self._announce(shares)
        logits = self._runner.step(feeds)
        prompts = (count for request, count in shares if request.reading and not request.attempt)
        self.tally.add_step(sum(prompts))
        for request, count in shares:
            request.fed += count
        ready = [row for row, (request, _) in enumerate(shares) if not request.unfed]
        ready = self._accepted(shares, feeds, ready, logits)
        if len(ready) < len(shares):
            logits = logits[ready]
        updates = self._sample(logits, [shares[row].request for row in ready])
        for request, chunk in updates:
            if chunk.finish_reason is not None:
                self._leave(request)
        return updates

    def _accepted(
        self, shares: list[Share], feeds: list[Feed], ready: list[int], logits: torch.Tensor
    ) -> list[int]:
        """The rows among `ready` that the gate lets stand. The others' tokens count as unfed, and
        join the next step: nobody else waits for them."""
        confidence = None
        if self._runner.gate.reruns or self._recording is not None:
            confidence = confidence_of(logits)
        again: list[int] = []
        if self._runner.gate.reruns and confidence is not None:
            again = self._runner.take_back(feeds, ready, confidence)
            self.tally.add_reruns(len(again))
        if self._recording is not None and confidence is not None:
            self._recording.keep([count for _, count in shares], again, confidence)
        for row in ready:
            request = shares[row].request
            request.attempt = request.attempt + 1 if row in again else 0
            request.fed -= row in again
        return [row for row in ready if row not in again]

    def _shares(self) -> list[Share]:
        shares = [Share(request, 1) for request in self._running if not request.reading]
        left = self._step_tokens - len(shares)
        for request in self._running:
            if request.reading and left:
                shares.append(Share(request, min(left, request.unfed)))
                left -= shares[-1].tokens
        return shares

    def _sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[Update]:
        """A request whose logits are no numbers fails alone."""
        if not requests:
            return []
        try:
            sampled = self._sampler.sample(logits, [request.row for request in requests])
        except BrokenModel as error:
            fine = [row for row in range(len(requests)) if row not in error.rows]
            failed = [requests[row] for row in error.rows]
            others = self._sample(logits[fine], [requests[row] for row in fine])
            return [*others, *(Update(request, request.cancel(error)) for request in failed)]
        self.tally.add_generated(len(sampled))
        return [
            Update(request, request.accept(token))
            for request, token in zip(requests, sampled, strict=True)
        ]

    def _leave(self, request: Request) -> None:
        slot = _slot(request)
        self._running.remove(request)
        self._runner.forget(slot)
        self._free.append(slot)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        request.slot = None
        if self._recording is not None:
            self._recording.end(request.id)

    def _announce(self, shares: Sequence[Share]) -> None:
        if self._recording is None:
            return
        documents: list[int] = []
        positions: list[int] = []
        phases: list[str] = []
        for request, count in shares:
            documents += repeat(request.id, count)
            positions += range(request.fed, request.fed + count)
            phases += repeat("prefill" if request.reading else "decode", count)
        self._recording.begin(documents, positions, phases)


def _feed(request: Request, count: int) -> Feed:
    tokens = request.next_tokens(count)
    return Feed(_slot(request), tokens, prompt=request.reading, attempt=request.attempt)


def _slot(request: Request) -> int:
    assert request.slot is not None, "a running request has a slot"
    return request.slot
