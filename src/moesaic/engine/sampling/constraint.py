"""Which tokens may come next in a text that must match a grammar."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


_KEPT = 16  # constraints
_TEXT = (".", "a b\u00e9")  # both must read it alike


class Constraint:
    """The constraint of one request: it follows the request's text token by token."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._bits: bytes | None = None  # of what may come next, once it was asked for

    def copy(self) -> Constraint:
        """For another request, which goes on from here by itself."""
        other = Constraint(self._matcher.deep_copy())
        other._bits = self._bits
        return other

    @property
    def failure(self) -> str | None:
        """Why there is no next token, if so: the grammar took too much time or memory, or no token
        of the vocabulary fits. The matcher finds that out when it is asked for the next ones, and
        allows an end then."""
        self._allowed()
        return _error_text(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def complete(self) -> bool:
        """Whether nothing but an end can follow; a matcher that has failed says so too."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def accepting(self) -> bool:
        """Whether the text so far matches as it is, even if more may follow."""
        return self._matcher.is_accepting()

    def forbidden(self, vocabulary: int) -> torch.Tensor:
        """[vocabulary], true where a token may not come next. Tokens that the tokenizer does not
        know never may."""
        bits = np.frombuffer(self._allowed(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[:vocabulary]
        forbidden = np.ones(vocabulary, dtype=np.bool_)
        forbidden[: len(allowed)] = allowed == 0
        return torch.from_numpy(forbidden)

    def advance(self, token: int) -> None:
        self._bits = None
        self._matcher.consume_token(token)

    def _allowed(self) -> bytes:
        if self._bits is None:
            self._bits = self._matcher.compute_bitmask()
        return self._bits


class Constraints:
    """Makes them for one model: its vocabulary is read when the first is wanted. Those that were
    wanted last are kept as they begin, since compiling one may take seconds."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: Iterable[int]) -> None:
        self._tokenizer, self._eos = tokenizer, sorted(eos_ids)
        self._kept: OrderedDict[str, Constraint] = OrderedDict()  # by form; copied, never advanced
        self._lock = Lock()  # of what is kept

    def of(self, params: SamplingParams) -> Constraint | None:
        """None: any text will do."""
        if params.form is None:
            return None
        with self._lock:
            if (kept := self._kept.get(params.form)) is not None:
                self._kept.move_to_end(params.form)
                return kept.copy()
        made = self._compiled(params.form)
        with self._lock:
            self._kept[params.form] = made
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return made.copy()

    def knows(self, form: str) -> bool:
        """Whether a constraint of this form is made without compiling it."""
        return form in self._kept

    def _compiled(self, form: str) -> Constraint:
        from llguidance import LLMatcher

        made = Constraint(LLMatcher(self._vocabulary, form, log_level=0))
        failure = made.failure  # of the first token
        if failure is not None:
            raise ImpossibleSetting(f"no text of this model can match: {failure}")
        return made

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        known = [token for token in self._eos if token < self._tokenizer.vocabulary]
        try:
            made = LLTokenizer(_readable(self._tokenizer.definition()), eos_token=known or None)
        except ValueError as error:
            raise _unreadable(str(error)) from None
        # Decoders may drop any space of the first token.
        ids = [id for part in _TEXT for id in self._tokenizer.encode(part, special=False)]
        read, ours = made.decode_str(ids).strip(), self._tokenizer.decode(ids).strip()
        if read != ours:
            raise _unreadable(f"{ours!r} in a way that is taken for {read!r}")
        return made


def _readable(definition: str) -> str:
    """A tokenizer.json with the decoder that llguidance knows: a replacement states the mark of a
    space, not the decoder `Metaspace`."""
    fields = json.loads(definition)
    decoder = fields.get("decoder") or {}
    several = decoder.get("decoders") or []
    for place, each in enumerate(several):
        if each["type"] == "Metaspace":
            mark = {"String": each["replacement"]}
            several[place] = {"type": "Replace", "pattern": mark, "content": " "}
    return json.dumps(fields, ensure_ascii=False)


def _unreadable(what: str) -> ImpossibleSetting:
    return ImpossibleSetting(
        f"the text of this model cannot be constrained: its tokenizer says {what}"
    )


def _error_text(error: str) -> str:
    """A matcher's error without the state it was in."""
    why = " ".join(re.split("<state>|<backtrace>", error)[0].split())
    if why.startswith("NoExtension"):
        return "no token of the model can follow"
    return f"llguidance fails on it ({why.removeprefix('panic: ')})" if "panic: " in why else why
