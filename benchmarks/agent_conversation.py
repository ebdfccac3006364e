"""The conversation of `benchmarks.agent_replay`: what an agent sends turn by turn, as token ids.

A system prompt with tools, then turns: a tool's result, to which the model answers. Every turn
sends the whole conversation again. In one turn an earlier result is another one, as where an agent
shortens its history, so that the conversation goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

# Around every message, as a chat template has them; the last of them before an answer is there
# before the answer is generated.
_BEGIN, _END = (1, 2, 3), (4, 5)
_FIRST_FREE = 8  # no other token of a message is below


@dataclass(frozen=True, slots=True)
class Turn:
    result: int  # tokens of the tool's result
    answer: int  # tokens that are generated
    edited: int | None = None  # number of the turn whose result is replaced before this one


@dataclass(frozen=True, slots=True)
class Script:
    """Lengths are drawn from the seed: results log-uniformly, answers within half of their mean."""

    system: int = 16_000
    turns: int = 20
    shortest: int = 500
    longest: int = 4_000
    answer: int = 100
    seed: int = 0

    def draw(self) -> list[Turn]:
        """The result of the turn at a quarter is replaced before the turn at the half."""
        random = np.random.default_rng(self.seed)
        low, high = log(self.shortest), log(self.longest)
        drawn = []
        for number in range(self.turns):
            result = round(exp(random.uniform(low, high)))
            answer = round(random.uniform(0.5, 1.5) * self.answer)
            edited = self.turns // 4 if number == self.turns // 2 and number > 1 else None
            drawn.append(Turn(result, max(answer, 1), edited))
        return drawn

    @property
    def longest_context(self) -> int:
        """What the whole conversation needs at most."""
        around = 2 * (len(_BEGIN) + len(_END))
        turns = sum(turn.result + turn.answer + around for turn in self.draw())
        return self.system + turns + around


class Conversation:
    """What has been said, and which tokens of it an engine has computed."""

    def __init__(self, script: Script, vocabulary: int, seed: int) -> None:
        self._random, self._vocabulary = np.random.default_rng(seed), vocabulary
        self._messages = [self._message(script.system)]
        self._computed: list[int] = []

    def prompt(self, turn: Turn) -> Prompt:
        """What is sent in this turn."""
        if turn.edited is not None:
            at = 1 + 2 * turn.edited
            self._messages[at] = self._message(len(self._messages[at]) - len(_BEGIN) - len(_END))
        self._messages.append(self._message(turn.result))
        tokens = [token for message in self._messages for token in message]
        ends = np.cumsum([len(message) for message in self._messages]).tolist()
        tokens += _BEGIN
        return Prompt(tokens, ends, shared(tokens, self._computed))

    def answered(self, prompt: Prompt, answer: Sequence[int]) -> None:
        """The last token of an answer is generated, and not computed."""
        self._messages.append([*_BEGIN, *answer, *_END])
        self._computed = [*prompt.tokens, *answer[:-1]]

    def _message(self, length: int) -> list[int]:
        return [*_BEGIN, *random_tokens(self._random, self._vocabulary, length), *_END]


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: list[int]
    boundaries: list[int]  # where messages end
    known: int  # tokens at the beginning that were computed in the turn before

    @property
    def new(self) -> int:
        return len(self.tokens) - self.known


class Continuation:
    """The floor of every turn: as many new tokens behind a context that is as long and that was
    computed last, in the same order. Where a turn's context is shorter, another one of that length
    is read first, which does not count."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._random, self._vocabulary = np.random.default_rng(seed), vocabulary
        self._computed: list[int] = []

    def context(self, known: int) -> list[int]:
        """What has to be read first; nothing where the context is there."""
        if known == len(self._computed):
            return []
        self._computed = self._tokens(known)
        return self._computed

    def prompt(self, new: int) -> list[int]:
        return [*self._computed, *self._tokens(new)]

    def answered(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        self._computed = [*prompt, *answer[:-1]]

    def _tokens(self, count: int) -> list[int]:
        return random_tokens(self._random, self._vocabulary, count)


def random_tokens(random: np.random.Generator, vocabulary: int, count: int) -> list[int]:
    found: list[int] = random.integers(_FIRST_FREE, vocabulary, size=count).tolist()
    return found


def shared(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = min(len(tokens), len(others))
    differ = np.flatnonzero(np.array(tokens[:count]) != np.array(others[:count]))
    return int(differ[0]) if len(differ) else count
