"""Continuous batching with chunked prefill: requests join and leave between steps.

Every decoding request has one token in every step; the rest of the token budget goes to requests in
prefill, so a long prompt never stalls decoding. A request is admitted when there are blocks of the
KV cache for its prompt; when blocks run out later, the last one admitted waits again. Text is the
requests' concern, delivery the callers'. Where the machine supports it, the next step is submitted
before this step's tokens are delivered. A request that fails ends alone (see `isolation`). A
batch-invariant batcher has one request in every step, in turns: how products are rounded depends on
how many tokens share a call, and these are then its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from time import perf_counter_ns

import torch

from moesaic.engine.drafting import checked, drafting_piece, drafts_wanted
from moesaic.engine.gating import confidence_of
from moesaic.engine.insight.captures import Captures
from moesaic.engine.insight.step_log import StepLog
from moesaic.engine.isolation import run_isolated
from moesaic.engine.kv.kv_blocks import Difference
from moesaic.engine.kv.request_blocks import RequestBlocks
from moesaic.engine.prompt_pace import PromptPace
from moesaic.engine.recording import RoutingRecording
from moesaic.engine.request import Request, Update
from moesaic.engine.run_stats import RunStats, StatsCounter
from moesaic.engine.runner import Runner
from moesaic.engine.sampling.sampled import Sampled
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.submitted_step import ComputedStep, Scheduled, SubmittedStep
from moesaic.engine.waiting_requests import WaitingRequests
from moesaic.machines.real.forward_pass import ForwardPass, Piece, RowSampling

_log = logging.getLogger("moesaic.kv")


class Batcher:
    """The batcher, which is not thread-safe. A request whose tokens cannot be computed, sampled or
    shown ends with its error (`Request.failure`), and the others go on. An interruption, or an
    error of what they share (the recording, the gate), ends all requests and is raised; new ones
    can be submitted afterwards."""

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        sequences: int,
        max_step_tokens: int,
        recording: RoutingRecording | None = None,
        prefix_cache: bool = True,
        batch_invariant: bool = False,
        waiting: WaitingRequests | None = None,
        text_of: Callable[[int], str] | None = None,
        max_stall_ms: float | None = None,
    ) -> None:
        """`prefix_cache`: a prompt that begins like earlier tokens is read from there on. Not in a
        recording, which has the routing of whole documents, nor where other requests must not
        change how a prompt is cut into pieces. `waiting`: an empty queue with its limits;
        `text_of`: of a token, for the log; `max_stall_ms`: see
        `PromptPace`."""
        self.counter, self.log, self.captures = (
            StatsCounter(runner), StepLog(runner), Captures(runner, recording is not None)
        )  # fmt: skip
        self._runner, self._sampler = runner, sampler
        self._whole_recording = recording
        self._step_tokens, self._in_turns = max_step_tokens, batch_invariant
        # No more sequences than tokens: every request in prefill gets at least one per step.
        slots = min(sequences, max_step_tokens)
        reuse = prefix_cache and recording is None and not batch_invariant
        preempts = runner.writes_as_it_reads and recording is None and not batch_invariant
        self._slots = RequestBlocks(runner, slots, reuse, preempts)
        self._submitted = SubmittedStep(runner, self.counter.add_failed_step)
        self._waiting = WaitingRequests() if waiting is None else waiting
        self._running: list[Request] = []
        self._text_of, self._pace = text_of, PromptPace(max_stall_ms, max_step_tokens)
        self._short = False  # of blocks for the next one, until something ends

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running)

    @property
    def requests(self) -> Iterator[Request]:
        """Those that have not ended, running ones first."""
        yield from self._running
        yield from self._waiting

    @property
    def _recording(self) -> RoutingRecording | None:
        """Of the whole run, or of a capture's steps."""
        return self.captures.recording if self._whole_recording is None else self._whole_recording

    def submit(self, request: Request) -> None:
        """Raises `Overloaded` where too many wait."""
        self._waiting.check(request)
        self._waiting.add(request)
        self._short = False  # it may come before the one that waits for blocks

    def step(self, ahead: bool = True) -> list[Update]:
        """One forward pass; the updates of the requests that got a token. Empty without
        requests. `ahead`: the next one may be under way when this returns. Then nothing else may
        be asked of the GPU before the next step, or before `settle`: what waits for the whole of it
        could keep the step from going on."""
        try:
            self._admit()
            return self._step(ahead) if self._running else []
        except BaseException as error:
            self._give_up(error)
            raise

    def settle(self) -> None:
        """Wait until no step is under way."""
        try:
            self._submitted.settle()
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        if self._recording is not None and isinstance(error, Exception):
            self._recording.discard(error)
        elif self._recording is not None:
            self._recording.abandon_step()
        self.captures.fail(error)
        self.cancel_all()
        if isinstance(error, Exception):
            self._slots.clear()  # an interruption leaves every sequence as it was

    def cancel(self, request: Request) -> None:
        """Takes effect at once, between steps. No effect on a finished request."""
        if request in self._running:
            self.settle()
            request.cancel()
            self._finish(request)
        elif request in self._waiting:
            request.cancel()
            self._waiting.remove(request)

    def cancel_all(self) -> None:
        """Cancel all requests; this also cleans up after an interrupted step."""
        try:
            self._submitted.drop()
        finally:
            self._end_all()

    def _end_all(self) -> None:
        ended = [*self._running, *self._waiting.clear()]
        self._running.clear()
        self._short = False
        for request in ended:
            if request.finish_reason is None:
                request.cancel()
            if request.slot is not None:
                self._slots.release(request)
            self._detach(request)
        self._slots.reclaim()

    def forget(self) -> None:
        """Nothing of ended requests is kept: for code that uses the runner's slots itself."""
        assert self.idle, "a running request has a slot"
        self._slots.clear()

    def stats(self) -> RunStats:
        return replace(
            self.counter.stats(),
            kept_tokens=self._slots.kept_tokens,
            blocks=self._slots.stats(),
            queue=self.counter.queue(self._waiting, len(self._running)),
        )

    @property
    def _may_admit(self) -> bool:
        return len(self._waiting) > 0 and self._slots.any_free and not self._short

    def _admit(self) -> None:
        if not self._may_admit:
            return
        self._submitted.settle()
        for request in self._waiting:
            if not self._slots.any_free:
                return
            if self._slots.waits_for(request, self._running):
                continue
            if not self._slots.admit(request, self._running):
                self._short = True
                return
            self._waiting.remove(request)
            self._running.append(request)
            self._begin(request)

    def _begin(self, request: Request) -> None:
        """It has a slot."""
        if request.begun:
            self.counter.add_resumed(request.computed_tokens)
            return
        request.begun, request.cached_tokens = True, request.computed_tokens
        request.started_ns = perf_counter_ns()
        self.counter.add_begun(request)
        if request.differs is not None:
            self._log_difference(request, request.differs)

    def _log_difference(self, request: Request, differs: Difference) -> None:
        """Why a prompt that begins like a kept one has to be read."""
        kept, asked = (
            f"{token}" if self._text_of is None else f"{self._text_of(token)!r} ({token})"
            for token in (differs.kept, differs.asked)
        )
        _log.info(
            "request %d: %d of %d tokens of its prompt are in the KV cache; token %d differs from "
            "what is kept there: %s instead of %s", request.id, request.cached_tokens,
            len(request.prompt), differs.position, asked, kept,
        )  # fmt: skip

    def _preempt(self, request: Request) -> None:
        """Its blocks are needed by others; it goes on when there are some again."""
        self._running.remove(request)
        self._slots.release(request)
        if self._recording is not None:
            self._recording.end(request.id)
        request.preempt()
        self._waiting.add(request, first=True)
        self.counter.add_preemption()

    def _step(self, ahead: bool) -> list[Update]:
        def complete(_: Sequence[Scheduled], step: ComputedStep) -> list[Update]:
            scheduled, work, logits = step.scheduled, step.work, step.output
            if ahead and not (self.log.on or self.captures.wanted):
                self._go_on(scheduled, logits)
            self.counter.add_step(step.whole)
            self.log.add(step.whole)
            self._follow_pace(scheduled)
            updates = self._updates(scheduled, work, logits)
            self.captures.add()
            return updates

        step = self._submitted.take(self._running)
        if step is not None:
            updates = complete(step.scheduled, step)
        else:
            self.captures.begin()
            scheduled = self._with_blocks(self._schedule())
            updates = run_isolated(scheduled, self._compute, complete, self._fail)
        for request, chunk in updates:
            if chunk.finish_reason is not None:
                self._finish(request)
        return updates

    def _compute(self, scheduled: Sequence[Scheduled]) -> ComputedStep:
        """A step that fails leaves the machine and the sequences as they were (see `Runner.step`),
        so its requests can run in other steps."""
        try:
            pieces = [self._piece(request, count) for request, count in scheduled]
            self._announce(scheduled)
            listener = None if self._recording is None else self._recording.on_routing
            work = ForwardPass(pieces, listener=listener)
            return ComputedStep(list(scheduled), work, self._runner.step(work), work)
        except Exception:
            self.counter.add_failed_step()
            if self._recording is not None:
                self._recording.abandon_step()
            raise

    def _follow_pace(self, scheduled: Sequence[Scheduled]) -> None:
        read = sum(tokens for request, tokens in scheduled if request.prefilling)
        if read and not all(request.prefilling for request, _ in scheduled):
            self._pace.add(read, self._runner.machine.times.step_ns)

    def _fail(self, scheduled: Scheduled, error: Exception) -> Update:
        """Its tokens cannot be computed, not even in a step of their own."""
        if self._recording is not None:
            self._recording.discard(error)  # it has whole documents only
        return Update(scheduled.request, scheduled.request.fail(error))

    def _go_on(self, scheduled: list[Scheduled], sampled: torch.Tensor) -> None:
        """Submit the next step, where its tokens are what a machine has sampled in this one, and
        no request comes or goes."""
        if sampled.dim() != 1 or self._in_turns or len(scheduled) < len(self._running):
            return
        pieces: list[Piece] = []
        for (request, count), token in zip(scheduled, sampled.tolist(), strict=True):
            if request.pending_tokens > count or not request.goes_on_after(token):
                return
            sampling = self._sampler.row_sampling(request.sampling, later=1)
            pieces.append(Piece(_slot(request), [token], prompt=False, sampling=sampling))
        enough = all(self._slots.grow(request, 1) for request, _ in scheduled)
        if enough and not self._may_admit:
            work = ForwardPass(pieces, ahead=True)
            self._submitted.submit([Scheduled(request, 1) for request, _ in scheduled], work)

    def _sampling(self, request: Request) -> RowSampling | None:
        """How a machine may sample its next token; None: its logits are needed."""
        gate = self._runner.gate
        if gate.reruns or gate.draft or self._recording is not None:
            return None
        return self._sampler.row_sampling(request.sampling)

    def _updates(
        self, scheduled: list[Scheduled], work: ForwardPass, logits: torch.Tensor
    ) -> list[Update]:
        if self._runner.gate.draft:
            return self._drafted(scheduled, work, logits)
        for request, count in scheduled:
            self._computed(request, count)
        ready = [row for row, (request, _) in enumerate(scheduled) if not request.pending_tokens]
        ready = self._accepted(scheduled, work, ready, logits)
        if len(ready) < len(scheduled):
            logits = logits[ready]
        return self._sample(logits, [scheduled[row].request for row in ready])

    def _drafted(
        self, scheduled: list[Scheduled], work: ForwardPass, logits: torch.Tensor
    ) -> list[Update]:
        """Updates under a gate that drafts: prompts as without a gate, drafts are kept for their
        check, and a check may bring several tokens of a request at once."""
        updates: list[Update] = []
        first = 0
        for (request, count), given in zip(scheduled, work.pieces, strict=True):
            rows = logits[first : first + (count if given.all_logits else 1)]
            first += len(rows)
            if given.of_prompt:
                self._computed(request, count)
                updates += [] if request.pending_tokens else self._sample(rows, [request])
            elif not given.attempt:
                request.drafted.append(int(rows[0].argmax()))
            else:
                drafts = len(request.drafted)
                new = checked(request, rows, self._sample)
                self.counter.add_check(drafts, len(new))
                self._runner.cache.truncate(_slot(request), request.computed_tokens)
                updates += new
        return updates

    def _computed(self, request: Request, count: int) -> None:
        before, prefilling = request.computed_tokens, request.prefilling
        request.computed_tokens += count
        if prefilling:
            self._slots.computed(request, before)
        self._waiting.serve(request.client, count * prefilling, count * (not prefilling))

    def _accepted(
        self,
        scheduled: list[Scheduled],
        work: ForwardPass,
        ready: list[int],
        logits: torch.Tensor,
    ) -> list[int]:
        """The rows among `ready` that the gate accepts. The tokens of the others are pending again
        and join the next step; no other request waits for them."""
        confidence = None
        if self._runner.gate.reruns or self._recording is not None:
            confidence = confidence_of(logits)
        again: list[int] = []
        if self._runner.gate.reruns and confidence is not None:
            again = self._runner.roll_back(work, ready, confidence)
            self.counter.add_reruns(len(again))
        if self._recording is not None and confidence is not None:
            self._recording.keep([count for _, count in scheduled], again, confidence)
        for row in ready:
            request = scheduled[row].request
            request.attempt = request.attempt + 1 if row in again else 0
            request.computed_tokens -= row in again
        return [row for row in ready if row not in again]

    def _schedule(self) -> list[Scheduled]:
        if self._in_turns:
            return [self._next_turn()]
        decoding = (request for request in self._running if not request.prefilling)
        scheduled = [Scheduled(request, self._decode_tokens(request)) for request in decoding]
        left = self._step_tokens - sum(tokens for _, tokens in scheduled)
        if scheduled:
            left = min(left, self._pace.tokens)
        for request in sorted(self._running, key=lambda each: -each.priority):
            if request.prefilling and left:
                scheduled.append(Scheduled(request, min(left, self._slots.next_cut(request))))
                left -= scheduled[-1].tokens
        return scheduled

    def _with_blocks(self, scheduled: list[Scheduled]) -> list[Scheduled]:
        """Those whose new tokens have blocks. When blocks run out, the last request of the lowest
        priority waits again."""
        if all(self._slots.grow(*each) for each in scheduled):
            return scheduled
        kept: list[Scheduled] = []
        order = {each: (-each.priority, at) for at, each in enumerate(self._running)}
        for each in sorted(scheduled, key=lambda one: order[one.request]):
            while each.request.slot is not None and not self._slots.grow(*each):
                self._preempt(max(self._running, key=lambda request: order[request]))
            if each.request.slot is not None:
                kept.append(each)
        return [each for each in scheduled if each in kept]

    def _next_turn(self) -> Scheduled:
        """The request that has waited longest; a prompt in pieces that are as long as they would
        be without other requests."""
        request = self._running.pop(0)
        self._running.append(request)
        if not request.prefilling:
            return Scheduled(request, self._decode_tokens(request))
        return Scheduled(request, min(self._step_tokens, self._slots.next_cut(request)))

    @property
    def _draft(self) -> int:
        """Drafts per check: a step must have room for the checks of all sequences at once."""
        return min(self._runner.gate.draft, self._step_tokens // self._slots.count - 1)

    def _decode_tokens(self, request: Request) -> int:
        """One, or all drafts with the token before them if they are to be checked."""
        if not self._runner.gate.draft:
            return 1
        drafts = len(request.drafted)
        return 1 if drafts < drafts_wanted(request, self._draft) else drafts + 1

    def _piece(self, request: Request, count: int) -> Piece:
        slot = _slot(request)
        if self._runner.gate.draft and not request.prefilling:
            return drafting_piece(self._runner, request, slot, self._draft)
        tokens = request.next_tokens(count)
        return Piece(
            slot, tokens, prompt=request.prefilling, attempt=request.attempt,
            sampling=self._sampling(request),
        )  # fmt: skip

    def _sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[Update]:
        """A request with NaN or infinite logits, or with nothing to say in its grammar, fails
        alone, and so does one whose text cannot be made."""

        def attempt(rows: Sequence[int]) -> list[Sampled]:
            mine = logits if len(rows) == len(requests) else logits[list(rows)]
            return self._sampler.sample(mine, [requests[row].sampling for row in rows])

        def accept(rows: Sequence[int], sampled: list[Sampled]) -> list[Update]:
            self.counter.add_generated(len(sampled))
            pairs = zip(rows, sampled, strict=True)
            return [_accept(requests[row], token) for row, token in pairs]

        def fail(row: int, error: Exception) -> Update:
            return Update(requests[row], requests[row].fail(error))

        return run_isolated(range(len(requests)), attempt, accept, fail)

    def _finish(self, request: Request) -> None:
        self._running.remove(request)
        self._slots.release(request)
        self._short = False
        self._waiting.forget_all_but({each.client for each in self._running})
        self._detach(request)

    def _detach(self, request: Request) -> None:
        request.slot = None
        if self._recording is not None:
            self._recording.end(request.id)

    def _announce(self, scheduled: Sequence[Scheduled]) -> None:
        if self._recording is None:
            return
        documents: list[int] = []
        positions: list[int] = []
        phases: list[str] = []
        for request, count in scheduled:
            documents += repeat(request.id, count)
            positions += range(request.computed_tokens, request.computed_tokens + count)
            phases += repeat("prefill" if request.prefilling else "decode", count)
        self._recording.begin(documents, positions, phases)


def _accept(request: Request, token: Sampled) -> Update:
    """Detokenizer, stop strings and grammar are the request's own."""
    try:
        return Update(request, request.accept(token))
    except Exception as error:
        return Update(request, request.fail(error))


def _slot(request: Request) -> int:
    assert request.slot is not None, "a running request has a slot"
    return request.slot
