"""A parameter of a policy: name, type, default, meaning and allowed values.

Parameters are registered with their policy (core/registry.py), so that the command line, its help
and every check read the same description."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Integral, Real

from moesaic.core.errors import ImpossibleSetting

Value = bool | int | float | str | None

AUTO = "auto"  # how None is written: the policy works the value out itself
_BOOLS = {"true": True, "yes": True, "false": False, "no": False}
_WORD = re.compile(r"[^\s,;:=]+")  # what can be written inside name:parameter=value,...


@dataclass(frozen=True, slots=True)
class Parameter:
    """`type` is bool, int, float or str; a string may be one of `choices`. Numbers lie above
    `above`, at or above `minimum`, at or below `maximum`. A `default` of None is worked out by the
    policy, as `meaning` says."""

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    default: Value
    meaning: str
    choices: tuple[str, ...] = ()
    above: float | None = None
    minimum: float | None = None
    maximum: float | None = None

    @property
    def kind(self) -> str:
        return "choice" if self.choices else self.type.__name__

    @property
    def allowed(self) -> str:
        """The allowed values as text: `a number above 0 and at maximum 1`."""
        words = " | ".join(self.choices) or _KINDS[self.type]
        limits = [
            f"{limit} {bound:g}"
            for limit, bound in (
                ("above", self.above),
                ("at least", self.minimum),
                ("at most", self.maximum),
            )
            if bound is not None
        ]
        words = f"{words} {' and '.join(limits)}" if limits else words
        return f"{words}, or {AUTO}" if self.default is None else words

    def read(self, owner: str, given: object) -> Value:
        """The value, given as text or as itself; `owner` says whose it is in the refusal."""
        try:
            value = self._converted(given)
        except (ValueError, OverflowError):
            value = None
            valid = False
        else:
            valid = self._within(value)
        if not valid:
            raise ImpossibleSetting(f"{owner}: {self.name} is {given!r}; it must be {self.allowed}")
        return value

    def write(self, value: Value) -> str:
        """The value as text that `read` reads."""
        if value is None:
            return AUTO
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            short = f"{value:g}"
            return short if float(short) == value else repr(value)
        return str(value)

    def _converted(self, given: object) -> Value:
        if self.default is None and (given is None or given == AUTO):
            return None
        if isinstance(given, str):
            return self._parsed(given.strip())
        if self.type is bool and isinstance(given, bool):
            return given
        if isinstance(given, bool):
            raise ValueError
        if self.type is int and isinstance(given, Integral):
            return int(given)
        if self.type is float and isinstance(given, Real):
            return float(given)
        raise ValueError

    def _parsed(self, text: str) -> Value:
        if self.type is bool:
            if text.lower() not in _BOOLS:
                raise ValueError
            return _BOOLS[text.lower()]
        return self.type(text)

    def _within(self, value: Value) -> bool:
        if value is None or isinstance(value, bool):
            return True
        if isinstance(value, str):
            return value in self.choices if self.choices else bool(_WORD.fullmatch(value))
        return (
            math.isfinite(value)
            and (self.above is None or value > self.above)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
        )


_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
}
