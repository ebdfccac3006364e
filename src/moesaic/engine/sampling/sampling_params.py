"""How one request wants its tokens chosen: checked when made, frozen afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.sampling.grammar import compiled, schema_text

# Sampling parameters that name tokens: a bias for some, and ids that end a sequence. Which ids a
# model knows is checked with the prompt.

MAX_BIAS = 100.0  # as in other engines: enough to force a token, or to exclude it
Bias = Mapping[int, float] | Sequence[tuple[int, float]]


def checked_ids(name: str, ids: object) -> tuple[int, ...]:
    """Whole numbers from 0, sorted, each once."""
    several = [ids] if _is_whole(ids) else ids
    if isinstance(several, str | bytes | Mapping) or not isinstance(several, Sequence | set):
        raise ImpossibleSetting(f"{name} is {ids!r}; it must be a list of token ids")
    for each in several:
        if not _is_whole(each) or each < 0:
            raise ImpossibleSetting(f"{name} has {each!r}; token ids are whole numbers from 0")
    return tuple(sorted({int(each) for each in several}))


def checked_bias(bias: object) -> tuple[tuple[int, float], ...]:
    try:
        pairs = dict(bias)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ImpossibleSetting(
            f"logit_bias is {bias!r}; it must map token ids to numbers, as in {{42: -5.0}}"
        ) from None
    checked_ids("logit_bias", list(pairs))
    for token, value in pairs.items():
        fine = isinstance(value, Real) and not isinstance(value, bool)
        if not fine or not -MAX_BIAS <= value <= MAX_BIAS:
            raise ImpossibleSetting(
                f"logit_bias of token {token} is {value!r}; it must lie between {-MAX_BIAS:g} and "
                f"{MAX_BIAS:g}"
            )
    return tuple(sorted((int(token), float(value)) for token, value in pairs.items()))


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


# Whole numbers: the least that is possible, and why.
_AT_LEAST = {
    "n": (1, "so many completions of the prompt"),
    "max_tokens": (1, "a request generates something"),
    "min_tokens": (0, "0 lets the model stop at once"),
    "top_k": (0, "0 keeps all tokens"),
    "logprobs": (0, "0 reports the chosen token only, None nothing"),
    "seed": (-math.inf, "None takes a fresh one"),
}
# Real numbers: least and most, and what the ends mean.
_BETWEEN = {
    "temperature": (0.0, 100.0, "0 always takes the likeliest token"),
    "top_p": (0.0, 1.0, "1 keeps all tokens"),
    "min_p": (0.0, 1.0, "0 keeps all tokens"),
    "repetition_penalty": (0.01, 100.0, "1 changes nothing, more discourages repeating"),
    "presence_penalty": (-2.0, 2.0, "0 changes nothing, more discourages repeating"),
    "frequency_penalty": (-2.0, 2.0, "0 changes nothing, more discourages repeating"),
}
_MAY_BE_NONE = ("logprobs", "seed")
_MAX_N = 1024
_SHAPES = ("json_schema", "grammar", "regex")  # of the text: one of them at most


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The defaults sample from the model's own distribution."""

    max_tokens: int = 256
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # keep the so many likeliest tokens; 0: all
    top_p: float = 1.0  # keep the likeliest tokens that together have this probability
    min_p: float = 0.0  # keep tokens at least so likely relative to the likeliest
    repetition_penalty: float = 1.0  # on the logits of tokens of the prompt and the output
    # The same seed draws the same numbers whatever else is in a batch; None: fresh entropy. In a
    # batch of another size logits may be rounded differently, and in bf16 a token may then differ.
    seed: int | None = None
    stop: Sequence[str] = ()  # one string or several, none of them shown; kept as a tuple
    logprobs: int | None = None  # so many alternatives per token; 0: only the chosen one's
    ignore_eos: bool = False  # go on past the model's end of sequence
    min_tokens: int = 0  # so many tokens come before an end of sequence
    presence_penalty: float = 0.0  # off the logits of tokens that the output has
    frequency_penalty: float = 0.0  # the same, times how often it has them
    logit_bias: Bias = ()  # added to the logits of these tokens; kept as sorted pairs
    stop_token_ids: Sequence[int] = ()  # they end a sequence as its own end does; kept as a tuple
    n: int = 1  # completions of the prompt; each draws by seed and number, the first by seed alone
    # What the text must be, one of them. A text that `max_tokens` cuts before it matches has the
    # finish reason "incomplete".
    json_schema: str | Mapping[str, Any] | None = None  # kept as JSON text; for objects that do not
    # say otherwise, additionalProperties is false
    grammar: str | None = None  # Lark or GBNF
    regex: str | None = None  # of the whole text
    # Special tokens that stay in the text, by their own text; kept as a tuple. Those of them that a
    # model does not have say nothing. Without: a text has no special tokens.
    keep_special_tokens: Sequence[str] = ()
    form: str | None = field(default=None, init=False, repr=False, compare=False)  # llguidance's

    def __post_init__(self) -> None:
        for name, (minimum, why) in _AT_LEAST.items():
            self._keep(name, self._whole(name, minimum, why))
        for name, (low, high, meaning) in _BETWEEN.items():
            self._keep(name, self._real(name, low, high, meaning))
        if not isinstance(self.ignore_eos, bool):
            raise ImpossibleSetting(
                f"ignore_eos is {self.ignore_eos!r}; it is either true or false"
            )
        if self.min_tokens > self.max_tokens:
            raise ImpossibleSetting(
                f"min_tokens is {self.min_tokens}; it can be at most max_tokens, which is "
                f"{self.max_tokens}: ask for fewer, or raise max_tokens"
            )
        self._keep("stop", _strings("stop", self.stop))
        kept = _strings("keep_special_tokens", self.keep_special_tokens)
        self._keep("keep_special_tokens", kept)
        self._keep("logit_bias", checked_bias(self.logit_bias))
        self._keep("stop_token_ids", checked_ids("stop_token_ids", self.stop_token_ids))
        self._check_n()
        self._keep("form", self._form())

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken, the first of equals; so it is with top_k 1."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def filters(self) -> bool:
        """Whether not all tokens may be drawn."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def changes_logits(self) -> bool:
        """Whether tokens are weighed otherwise than the model does."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1.0)
        return any(penalties) or bool(self.logit_bias)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as it is kept."""
        assert isinstance(self.logit_bias, tuple), "made one when it was checked"
        return self.logit_bias

    def _check_n(self) -> None:
        if self.n > _MAX_N:
            raise ImpossibleSetting(f"n is {self.n}; it can be at most {_MAX_N}")
        if self.n > 1 and self.greedy:
            raise ImpossibleSetting(
                f"{self.n} completions at temperature 0 would all be the same: use a temperature "
                "above 0, or ask for one completion"
            )

    def _form(self) -> str | None:
        given = [name for name in _SHAPES if getattr(self, name) is not None]
        if not given:
            return None
        if len(given) > 1:
            raise ImpossibleSetting(f"{given[0]} and {given[1]} were given: give one of them")
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise ImpossibleSetting(
                    f"{name} was given with {given[0]}, which says itself where the text ends: "
                    "leave it out"
                )
        if self.json_schema is not None:
            self._keep("json_schema", schema_text(self.json_schema))
        return compiled(given[0], getattr(self, given[0]))

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _whole(self, name: str, minimum: float, why: str) -> int | None:
        value = getattr(self, name)
        if value is None and name in _MAY_BE_NONE:
            return None
        if not _is_number(value, Integral):
            raise ImpossibleSetting(f"{name} is {value!r}; it must be a whole number ({why})")
        if value < minimum:
            raise ImpossibleSetting(f"{name} is {value}; it must be at least {minimum} ({why})")
        return int(value)

    def _real(self, name: str, low: float, high: float, meaning: str) -> float:
        value = getattr(self, name)
        if not _is_number(value, Real):
            raise ImpossibleSetting(f"{name} is {value!r}; it must be a number ({meaning})")
        if not low <= value <= high:  # NaN is not between anything
            raise ImpossibleSetting(
                f"{name} is {value}; it must lie between {low:g} and {high:g} ({meaning})"
            )
        return float(value)


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _strings(name: str, value: object) -> tuple[str, ...]:
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, tuple | list) or not all(isinstance(one, str) for one in several):
        raise ImpossibleSetting(f"{name} is {value!r}; it must be a string or a list of strings")
    if "" in several:
        raise ImpossibleSetting(
            f"{name} has an empty string, which every text has at once; leave it out"
        )
    return tuple(several)
