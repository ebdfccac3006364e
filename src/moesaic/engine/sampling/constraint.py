"""Which tokens may come next in a text that must match a grammar."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class Constraint:
    """Of one request: follows its text token by token."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def failure(self) -> str | None:
        """Why there is no next token, if so: the grammar took too much time or memory, or no token
        of the vocabulary fits."""
        return self._matcher.get_error() or None

    @property
    def complete(self) -> bool:
        """Whether nothing but an end can follow."""
        return self._matcher.is_stopped()

    def forbidden(self, vocabulary: int) -> torch.Tensor:
        """[vocabulary], true where a token may not come next. Tokens that the tokenizer does not
        know never may."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[:vocabulary]
        forbidden = np.ones(vocabulary, dtype=np.bool_)
        forbidden[: len(allowed)] = allowed == 0
        return torch.from_numpy(forbidden)

    def advance(self, token: int) -> None:
        self._matcher.consume_token(token)


class Constraints:
    """Makes them for one model: its vocabulary is read when the first is wanted."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: Iterable[int]) -> None:
        self._tokenizer, self._eos = tokenizer, sorted(eos_ids)

    def of(self, params: SamplingParams) -> Constraint | None:
        """None: any text will do."""
        if params.form is None:
            return None
        from llguidance import LLMatcher

        made = Constraint(LLMatcher(self._vocabulary, params.form, log_level=0))
        made.forbidden(self._tokenizer.vocabulary)  # finds out whether there is a first token
        if made.failure is not None:
            raise ImpossibleSetting(f"no text of this model can match: {made.failure}")
        return made

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        known = [token for token in self._eos if token < self._tokenizer.vocabulary]
        try:
            return LLTokenizer(self._tokenizer.definition(), eos_token=known or None)
        except ValueError as error:
            raise ImpossibleSetting(
                f"the text of this model cannot be constrained: its tokenizer says {error}"
            ) from None
