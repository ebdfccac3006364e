"""One request from submission to its end: its tokens, its KV cache slot, its text, its times.

Knows nothing of other requests; the batcher schedules its tokens and passes the sampled ones on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import NamedTuple

from moesaic.core.units import NS_PER_S
from moesaic.engine.completion import Chunk, Completion, FinishReason, Timings
from moesaic.engine.kv.kv_blocks import Difference
from moesaic.engine.output_text import OutputText
from moesaic.engine.sampling.sampled import Sampled
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState


class Sender(NamedTuple):
    """Who asks, and how urgently: clients have equal shares, and a higher priority comes first."""

    client: str = ""
    priority: int = 0


@dataclass(slots=True, eq=False)
class Request:
    id: int
    number: int  # among the completions of its prompt
    prompt: tuple[int, ...]
    sampling: SamplingState
    max_new_tokens: int  # params.max_tokens, or what the context leaves
    eos: frozenset[int]  # tokens that end it
    output: OutputText
    client: str = ""  # see `Sender`
    priority: int = 0
    boundaries: tuple[int, ...] = ()  # where messages of the prompt end
    slot: int | None = None  # of the KV cache, while it runs
    computed_tokens: int = 0  # tokens in the KV cache
    to_read: int = 0  # tokens that are read in pieces: the prompt, or all if it was preempted
    begun: bool = False  # whether it has had a slot
    cached_tokens: int = 0  # of the prompt, found in the KV cache when it began
    differs: Difference | None = None  # where its prompt left what was kept
    behind: Request | None = None  # which reads what this one's prompt begins with
    behind_until: int = 0  # so many tokens
    preemptions: int = 0  # how often it gave up its slot
    attempt: int = 0  # how often the gate rejected the next token
    drafted: list[int] = field(default_factory=list)  # tokens that a pass with all experts has not
    # checked yet; the KV cache has entries of them, which do not count as computed
    sampled: list[Sampled] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    failure: Exception | None = None  # why it was cancelled, unless by its client
    submitted_ns: int = field(default_factory=perf_counter_ns)
    started_ns: int | None = None  # when it first had a slot
    first_token_ns: int | None = None
    finished_ns: int | None = None

    def __post_init__(self) -> None:
        self.to_read = len(self.prompt)

    @property
    def params(self) -> SamplingParams:
        return self.sampling.params

    @property
    def prefilling(self) -> bool:
        """Whether some of what is read in pieces is not computed yet."""
        return self.computed_tokens < self.to_read

    @property
    def pending_tokens(self) -> int:
        """Tokens not computed yet: of the prompt, or the last one generated."""
        return len(self.sampling.seen) - self.computed_tokens

    def next_tokens(self, count: int) -> list[int]:
        return self.sampling.seen[self.computed_tokens : self.computed_tokens + count].tolist()

    def preempt(self) -> None:
        """It has lost its slot: all tokens are read when it gets another one."""
        self.slot, self.computed_tokens, self.attempt = None, 0, 0
        self.drafted = []
        self.to_read = len(self.sampling.seen)
        self.preemptions += 1

    def goes_on_after(self, token: int) -> bool:
        """Whether this as its next token leaves no doubt that another one follows, whatever text it
        has."""
        if token < 0 or token in self.eos or self.output.may_stop:
            return False
        return self.sampling.constraint is None and (
            self.sampling.generated + 1 < self.max_new_tokens
        )

    def accept(self, sampled: Sampled) -> Chunk:
        """Append the next token; the chunk to output."""
        now = perf_counter_ns()
        if self.first_token_ns is None:
            self.first_token_ns = now
        self.sampling.append(sampled.token)
        self.sampled.append(sampled)
        text = self._advance(sampled.token)
        if self.finish_reason is not None:
            self.finished_ns = now
        wanted = sampled if self.params.logprobs is not None else None
        return Chunk(text, sampled.token, self.finish_reason, wanted)

    def cancel(self) -> Chunk:
        """End the request now."""
        assert self.finish_reason is None, "a finished request cannot be cancelled"
        self.finish_reason = "cancelled"
        self.finished_ns = perf_counter_ns()
        return Chunk("", None, "cancelled")

    def fail(self, error: Exception) -> Chunk:
        """End the request because of this error, also where it fails while its last token is
        accepted."""
        self.failure, self.finish_reason = error, None
        return self.cancel()

    def completion(self) -> Completion:
        assert self.finish_reason is not None, "the request is still running"
        return Completion(
            index=self.number,
            prompt_tokens=self.prompt,
            tokens=tuple(sampled.token for sampled in self.sampled),
            text=self.output.text,
            finish_reason=self.finish_reason,
            logprobs=None if self.params.logprobs is None else tuple(self.sampled),
            timings=self._timings(),
            cached_tokens=self.cached_tokens,
        )

    def _advance(self, token: int) -> str:
        """Sets the finish reason, if there is one; returns the text to output."""
        if token in self.eos:  # it has no text
            self.finish_reason = "stop"
            return self.output.finish().text
        shown = self.output.feed(token)
        if shown.stopped:
            self.finish_reason = "stop"
            return shown.text
        if self.sampling.generated < self.max_new_tokens and not self.sampling.complete:
            return shown.text
        last = self.output.finish()  # a stop string may come to light with it
        if last.stopped or self.sampling.complete:
            self.finish_reason = "stop"
        else:
            self.finish_reason = "incomplete" if self.sampling.incomplete else "length"
        return shown.text + last.text

    def _timings(self) -> Timings:
        assert self.finished_ns is not None, "a finished request has a finish time"
        total_s = (self.finished_ns - self.submitted_ns) / NS_PER_S
        if self.first_token_ns is None:
            return Timings(None, None, total_s)
        first_s = (self.first_token_ns - self.submitted_ns) / NS_PER_S
        decoded = len(self.sampled) - 1
        rate = decoded / (total_s - first_s) if decoded else None
        return Timings(first_s, rate, total_s)


class Update(NamedTuple):
    """The result of a step for one request."""

    request: Request
    chunk: Chunk
