"""What one forward pass brings: per sequence, how many new tokens on how long a context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class SequenceTokens(NamedTuple):
    """One sequence's part of a step: one token while it decodes, else a piece of its prompt."""

    new_tokens: int
    context: int  # tokens already in its KV cache


@dataclass(frozen=True)
class Step:
    """One forward pass over a mixture of sequences; they may bring different numbers of tokens."""

    sequences: tuple[SequenceTokens, ...]

    def __post_init__(self) -> None:
        assert self.sequences, "a step without sequences"
        assert all(each.new_tokens >= 1 for each in self.sequences), "every sequence brings a token"

    @classmethod
    def of(cls, sequences: Iterable[tuple[int, int]]) -> Step:
        """Make a step from pairs of new tokens and context."""
        return cls(tuple(SequenceTokens(*each) for each in sequences))

    @classmethod
    def decode(cls, batch: int, context: int = 0) -> Step:
        """One token for each of `batch` sequences that look back equally far."""
        return cls((SequenceTokens(1, context),) * batch)

    @classmethod
    def prompt(cls, tokens: int, context: int = 0) -> Step:
        """A piece of one prompt, after `context` tokens of it."""
        return cls((SequenceTokens(tokens, context),))

    @property
    def num_sequences(self) -> int:
        return len(self.sequences)

    @cached_property
    def tokens(self) -> int:
        return sum(each.new_tokens for each in self.sequences)

    @cached_property
    def decode_tokens(self) -> int:
        """The number of sequences that bring one token. A prompt's last piece may be one token,
        too: it costs what a decoded token costs, and counts as one."""
        return sum(each.new_tokens == 1 for each in self.sequences)

    @property
    def prompt_tokens(self) -> int:
        """The tokens of sequences that bring several."""
        return self.tokens - self.decode_tokens

    @property
    def phase(self) -> str:
        """Which of a system's two schedules a step is planned with: "prefill" where prompt pieces
        bring more than half of the tokens, "decode" otherwise. A schedule is chosen for the whole
        step because the tokens of all sequences meet in the same experts: what an expert costs
        depends on how many they are together, and the majority says what that is like."""
        return "prefill" if self.prompt_tokens > self.decode_tokens else "decode"

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values attention reads, new ones included, over all sequences."""
        return self.tokens + sum(each.context for each in self.sequences)

    @cached_property
    def attention_pairs(self) -> float:
        """Pairs of a new token and a token it looks at (causal, itself included): of n new tokens
        after a context of c, the i-th looks at c + i."""
        return sum(n * (2 * context + n + 1) for n, context in self.sequences) / 2

    def behind(self, context: int) -> Step:
        """The same tokens with so much more context before each sequence."""
        if not context:
            return self
        return Step.of((n, before + context) for n, before in self.sequences)
