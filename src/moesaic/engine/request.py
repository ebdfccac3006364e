"""One request from asking to its end: its tokens, its place in the KV cache, its text, its times.

Knows nothing of other requests; the batcher feeds it to the model and hands it the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns

from moesaic.core.errors import MoesaicError
from moesaic.core.units import NS_PER_S
from moesaic.engine.completion import Chunk, Completion, FinishReason, Timings
from moesaic.engine.output_text import OutputText
from moesaic.engine.sampling.row_state import RowState
from moesaic.engine.sampling.sampled import Sampled
from moesaic.engine.sampling.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    id: int
    prompt: tuple[int, ...]
    row: RowState
    most: int  # tokens that may be generated: what was asked for, or what the context leaves
    eos: frozenset[int]  # tokens that end it
    output: OutputText
    slot: int | None = None  # of the KV cache, while it runs
    fed: int = 0  # tokens the KV cache remembers
    attempt: int = 0  # how often the gate had the next token run again
    sampled: list[Sampled] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    failure: MoesaicError | None = None  # why it was cancelled, if for a reason of its own
    submitted_ns: int = field(default_factory=perf_counter_ns)
    first_token_ns: int | None = None
    finished_ns: int | None = None

    @property
    def params(self) -> SamplingParams:
        return self.row.params

    @property
    def reading(self) -> bool:
        """Whether some of the prompt is still to be fed."""
        return self.fed < len(self.prompt)

    @property
    def unfed(self) -> int:
        """Tokens the model has not seen: of the prompt, or the last one generated."""
        return len(self.row.seen) - self.fed

    def next_tokens(self, count: int) -> list[int]:
        return self.row.seen[self.fed : self.fed + count].tolist()

    def accept(self, sampled: Sampled) -> Chunk:
        """The next token, and what follows from it."""
        now = perf_counter_ns()
        if self.first_token_ns is None:
            self.first_token_ns = now
        self.row.append(sampled.token)
        self.sampled.append(sampled)
        text = self._advance(sampled.token)
        if self.finish_reason is not None:
            self.finished_ns = now
        wanted = sampled if self.params.logprobs is not None else None
        return Chunk(text, sampled.token, self.finish_reason, wanted)

    def cancel(self, failure: MoesaicError | None = None) -> Chunk:
        """It ends here."""
        assert self.finish_reason is None, "only what goes on can be cancelled"
        self.finish_reason, self.failure = "cancelled", failure
        self.finished_ns = perf_counter_ns()
        return Chunk("", None, "cancelled")

    def completion(self) -> Completion:
        assert self.finish_reason is not None, "the request goes on"
        return Completion(
            prompt_tokens=self.prompt,
            tokens=tuple(sampled.token for sampled in self.sampled),
            text=self.output.text,
            finish_reason=self.finish_reason,
            logprobs=None if self.params.logprobs is None else tuple(self.sampled),
            timings=self._timings(),
        )

    def _advance(self, token: int) -> str:
        """Sets the finish reason, if there is one; returns the text to show."""
        if token in self.eos:  # it has no text
            self.finish_reason = "stop"
            return self.output.finish().text
        shown = self.output.feed(token)
        if shown.stopped:
            self.finish_reason = "stop"
            return shown.text
        if self.row.generated < self.most:
            return shown.text
        last = self.output.finish()  # a stop string may come to light with it
        self.finish_reason = "stop" if last.stopped else "length"
        return shown.text + last.text

    def _timings(self) -> Timings:
        assert self.finished_ns is not None, "a request that has finished did so at some time"
        total_s = (self.finished_ns - self.submitted_ns) / NS_PER_S
        if self.first_token_ns is None:
            return Timings(None, None, total_s)
        first_s = (self.first_token_ns - self.submitted_ns) / NS_PER_S
        decoded = len(self.sampled) - 1
        rate = decoded / (total_s - first_s) if decoded else None
        return Timings(first_s, rate, total_s)
