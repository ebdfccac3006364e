"""The output of a request: chunks while it runs, the completion at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moesaic.engine.sampling.sampled import Sampled

# stop: the model, a stop text or the grammar ended the text. length: `max_tokens` or the context
# was reached. incomplete: the same, before the text matched its schema, grammar or expression.
FinishReason = Literal["stop", "length", "incomplete", "cancelled"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The output of one step for one request. All texts together are the completion's text."""

    text: str  # new text, perhaps none: half a character or a possible stop string is held back
    token: int | None  # None: the request ended without one
    finish_reason: FinishReason | None = None  # None: more follows
    logprobs: Sampled | None = None  # None: not asked for


@dataclass(frozen=True, slots=True)
class Timings:
    time_to_first_token_s: float | None  # from asking; None: there is no token
    decode_tokens_per_s: float | None  # of the tokens after the first; None: there are none
    total_s: float


@dataclass(frozen=True, slots=True)
class Completion:
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]  # all generated ones, an end of sequence included
    text: str | None  # cut where a stop string begins; None: the model has no tokenizer
    finish_reason: FinishReason
    logprobs: tuple[Sampled, ...] | None  # one per token; None: not asked for
    timings: Timings
    cached_tokens: int = 0  # of the prompt, whose KV was there: only the others were read
    index: int = 0  # among the `n` completions of its prompt
