"""One request as the sampler sees it: parameters, random generator, tokens so far."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from moesaic.engine.sampling.sampling_params import SamplingParams


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

    @classmethod
    def start(cls, params: SamplingParams, prompt: Iterable[int]) -> SamplingState:
        # As text, because Random takes the absolute value of a number.
        random = Random() if params.seed is None else Random(f"{params.seed:x}")
        return cls(params, array("q", prompt), random)

    def append(self, token: int) -> None:
        self.seen.append(token)
        self.generated += 1

    @property
    def too_short(self) -> bool:
        """Whether the model may not end the sequence yet."""
        return self.generated < self.params.min_tokens
