"""The tests of a bench, named as llama-bench names them: pp512 reads a prompt of 512 tokens, tg128
writes 128 tokens from an empty context, tg128@4 does so for four sequences at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moesaic.core.errors import ImpossibleSetting


@dataclass(frozen=True, slots=True)
class Case:
    phase: str  # "prefill" | "decode"
    tokens: int  # of one sequence: read, or written
    batch: int = 1  # sequences at once

    @property
    def name(self) -> str:
        if self.phase == "prefill":
            return f"pp{self.tokens}"
        return f"tg{self.tokens}" + (f"@{self.batch}" if self.batch > 1 else "")

    @property
    def all_tokens(self) -> int:
        """The tokens of one repetition."""
        return self.tokens * self.batch

    def steps(self, piece: int) -> int:
        """The steps of one repetition, with prompts fed in pieces."""
        return self.tokens if self.phase == "decode" else -(-self.tokens // piece)


def make_cases(
    prompts: Sequence[int], answers: Sequence[int], batches: Sequence[int] = (1,)
) -> tuple[Case, ...]:
    """Every prompt, then every answer in every batch; a length of 0 is a test left out."""
    for option, values, least in (
        ("--prompt-tokens", prompts, 0),
        ("--generate", answers, 0),
        ("--batch", batches, 1),
    ):
        for value in values:
            if value < least:
                raise ImpossibleSetting(f"{option} is {value}; it must be at least {least}")
    reading = [Case("prefill", tokens) for tokens in prompts if tokens]
    writing = [Case("decode", tokens, batch) for tokens in answers if tokens for batch in batches]
    if not reading and not writing:
        raise ImpossibleSetting(
            "no test was asked for: give --prompt-tokens or --generate a number above 0"
        )
    return (*reading, *writing)


def longest(cases: Sequence[Case]) -> int:
    """Tokens of the longest sequence."""
    return max(case.tokens for case in cases)


def largest_batch(cases: Sequence[Case]) -> int:
    return max(case.batch for case in cases)
