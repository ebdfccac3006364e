"""What a machine description is made of: numbers with rules, and names. A number that cannot be
true (an efficiency above 1, a negative latency) never gets into a specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.quantities import quantity


class Rule(NamedTuple):
    """What a number must satisfy, in words and in code."""

    expected: str
    holds: Callable[[float], bool]


Positive = Annotated[float, Rule("a number above 0", lambda v: v > 0)]
NotNegative = Annotated[float, Rule("a number of 0 or more", lambda v: v >= 0)]
Fraction = Annotated[float, Rule("a fraction above 0, at most 1", lambda v: 0 < v <= 1)]
Share = Annotated[float, Rule("a share from 0 to 1", lambda v: 0 <= v <= 1)]
Count = Annotated[int, Rule("a whole number of 1 or more", lambda v: v >= 1 and v == int(v))]
Whole = Annotated[int, Rule("a whole number of 0 or more", lambda v: v >= 0 and v == int(v))]
Rates = Mapping[str, Positive]  # weight precision -> rate
Part = Annotated[str, "a lane, memory or placement of the machine"]
PartRates = Mapping[Part, Positive]
TokenCount = Annotated[str, "a weight precision and a number of tokens: bf16-16"]
TokenFactors = Mapping[TokenCount, Positive]


class Number(NamedTuple):
    """One numeric field of a specification, or a table of them: by weight precision (`dtypes`), by
    parts of the machine (`parts`) or by precision and token count (`tokens`)."""

    name: str
    rule: Rule
    dtypes: bool = False
    parts: bool = False
    default: Any = MISSING
    tokens: bool = False

    @property
    def table(self) -> bool:
        return self.dtypes or self.parts or self.tokens


class Text(NamedTuple):
    """One field that names something, or several things (`many`)."""

    name: str
    many: bool
    required: bool


# By class. Reading annotations takes far longer than checking an object, and a machine with DIMMs
# has hundreds of parts.
_NUMBERS: dict[type[Any], tuple[Number, ...]] = {}
_TEXTS: dict[type[Any], tuple[Text, ...]] = {}


def numbers(kind: type[Any]) -> tuple[Number, ...]:
    """The numeric fields of a specification class, in order."""
    if kind not in _NUMBERS:
        _NUMBERS[kind] = tuple(_numbers(kind))
    return _NUMBERS[kind]


def _numbers(kind: type[Any]) -> Iterator[Number]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        name, hint = each.name, hints[each.name]
        table = get_origin(hint) is not Annotated and len(get_args(hint)) == 2
        extras = get_args(get_args(hint)[1] if table else hint)
        if len(extras) == 2 and isinstance(extras[1], Rule):
            key = get_args(hint)[0] if table else None
            kinds = key is str, key == Part, key == TokenCount
            rule = _within(extras[1], name)
            yield Number(name, rule, *kinds[:2], default=each.default, tokens=kinds[2])


def _within(rule: Rule, field: str) -> Rule:
    """The same rule, in the range that the field's unit has."""
    possible = quantity(field)
    return Rule(f"{rule.expected} ({possible})", lambda v: possible.holds(v) and rule.holds(v))


def texts(kind: type[Any]) -> tuple[Text, ...]:
    """The fields of a specification class that name something, in order."""
    if kind not in _TEXTS:
        _TEXTS[kind] = tuple(_texts(kind))
    return _TEXTS[kind]


def _texts(kind: type[Any]) -> Iterator[Text]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        many = hints[each.name] == tuple[str, ...]
        if many or hints[each.name] is str:
            yield Text(each.name, many, each.default is MISSING)


class Checked:
    """Refuses impossible numbers on construction."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for number in numbers(type(self)):
            value = getattr(self, number.name)
            for each in value.values() if number.table else (value,):
                if not number.rule.holds(each):
                    where = f"{type(self).__name__}.{number.name}"
                    raise ImpossibleSetting(f"{where} is {each}: expected {number.rule.expected}")
