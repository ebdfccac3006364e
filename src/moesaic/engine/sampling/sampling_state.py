"""One request as the sampler sees it: parameters, random generator, tokens so far."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from moesaic.engine.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from moesaic.engine.sampling.constraint import Constraint


@dataclass(slots=True)
class SamplingState:
    """Lives as long as the request; its owner appends the accepted tokens.

    The generator is the request's own and gives one number per sampled token, so what else is in
    the batch, and on which device the logits are, cannot change what a seed leads to.
    """

    params: SamplingParams
    seen: array[int]  # prompt and output
    random: Random
    generated: int = 0  # how many of the seen tokens are output
    constraint: Constraint | None = None  # on the output
    _numbers: list[float] = field(default_factory=list)  # drawn, but nothing was sampled with them

    @classmethod
    def start(
        cls,
        params: SamplingParams,
        prompt: Iterable[int],
        number: int = 0,
        constraint: Constraint | None = None,
    ) -> SamplingState:
        """`number` is that of the completion, among the `n` of a prompt: the first is what the
        seed leads to without others."""
        # As text, because Random takes the absolute value of a number.
        own = f"{params.seed or 0:x}" + (f":{number}" if number else "")
        random = Random() if params.seed is None else Random(own)
        return cls(params, array("q", prompt), random, constraint=constraint)

    def append(self, token: int) -> None:
        self.seen.append(token)
        self.generated += 1
        if self.constraint is not None:
            self.constraint.advance(token)

    def next_number(self, later: int = 0) -> float:
        """What the next token is drawn with, or one so many tokens later, however often it is
        asked for before."""
        while len(self._numbers) <= later:
            self._numbers.append(self.random.random())
        return self._numbers[later]

    def take_number(self) -> float:
        """The same, for the token that is sampled now."""
        self.next_number()
        return self._numbers.pop(0)

    @property
    def complete(self) -> bool:
        """Whether the constraint lets nothing follow."""
        return self.constraint is not None and self.constraint.complete

    @property
    def incomplete(self) -> bool:
        """Whether the constraint demands more text."""
        return self.constraint is not None and not self.constraint.accepting

    @property
    def too_short(self) -> bool:
        """Whether the model may not end the sequence yet."""
        return self.generated < self.params.min_tokens
