"""Typed access to one parsed config.json: a field is there and of the right kind, or BadConfig.

Knows JSON values, not architectures. Nothing is filled in silently: what may be absent is
asked for by an explicit method. Nothing is skipped silently either: `unread` has the fields that
no method has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from moesaic.core.errors import BadConfig
from moesaic.core.parsing import short

# Above what any model has, below what overflows: a field beyond them is damaged.
MAX_COUNT = 1 << 27  # tokens of a context, rows of a vocabulary, widths
MAX_LAYERS = 4096
MAX_EXPERTS = 65536
_SMALLEST, _LARGEST = 1e-30, 1e30  # of numbers that are not 0: their squares are finite


class ConfigReader:
    def __init__(self, fields: Mapping[str, Any], path: object) -> None:
        self.path = path
        self._fields = fields
        self._read: set[str] = set()

    def has(self, field: str) -> bool:
        """Present and not null."""
        return self.value(field) is not None

    def value(self, field: str) -> Any:
        """The field's value; None where the field is absent."""
        self._read.add(field)
        return self._fields.get(field)

    def names(self) -> tuple[str, ...]:
        """The names of all fields, those of tables included; this reads none of them."""
        found: list[str] = []
        tables: list[Mapping[str, Any]] = [self._fields]
        for table in tables:  # which grows
            found += table
            tables += [value for value in table.values() if isinstance(value, dict)]
        return tuple(found)

    def unread(self) -> dict[str, Any]:
        """The fields not read so far."""
        return {name: value for name, value in self._fields.items() if name not in self._read}

    def count(self, field: str, minimum: int = 1, maximum: int = MAX_COUNT) -> int:
        """A required whole number, at least `minimum` and at most `maximum`."""
        value = self._required(field, f"a whole number of {minimum} or more")
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < minimum:
            self.fail(field, f"expected a whole number of {minimum} or more, not {short(value)}")
        if value > maximum:
            self.fail(field, f"expected at most {maximum}, not {short(value)}")
        return int(value)

    def nullable_count(self, field: str, minimum: int = 1, maximum: int = MAX_COUNT) -> int | None:
        """Like `count`, but null is an answer too; only absence is an error."""
        if field in self._fields and not self.has(field):
            return None
        return self.count(field, minimum, maximum)

    def number(self, field: str, minimum: float = 0.0) -> float:
        """A required number, whole or not, at least `minimum`: 0 or one that squares to neither
        0 nor infinity."""
        value = self._required(field, f"a number of {minimum:g} or more")
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not value >= minimum:
            self.fail(field, f"expected a number of {minimum:g} or more, not {short(value)}")
        if value and not _SMALLEST <= value <= _LARGEST:
            what = f"expected 0 or a number from {_SMALLEST:g} to {_LARGEST:g}"
            self.fail(field, f"{what}, not {short(value)}")
        return float(value)

    def flag(self, field: str) -> bool:
        value = self._required(field, "true or false")
        if not isinstance(value, bool):
            self.fail(field, f"expected true or false, not {short(value)}")
        return bool(value)

    def choice(self, field: str, options: Sequence[str]) -> str:
        expected = "one of " + ", ".join(options)
        value = self._required(field, expected)
        if value not in options:
            self.fail(field, f"expected {expected}, not {short(value)}")
        return str(value)

    def indices(self, field: str, end: int) -> tuple[int, ...]:
        """A list of whole numbers from 0 up to, not including, `end`."""
        expected = f"a list of whole numbers from 0 to {end - 1}"
        value = self._required(field, expected)
        if not isinstance(value, list) or not all(_is_index(item, end) for item in value):
            self.fail(field, f"expected {expected}, not {short(value)}")
        return tuple(value)

    def table(self, field: str) -> Mapping[str, Any]:
        """An optional object; empty where absent or null."""
        value = self.value(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(field, f"expected an object, not {short(value)}")
        return dict(value)

    def nested(self, fields: Mapping[str, Any]) -> ConfigReader:
        """A reader of some fields of the same file."""
        return ConfigReader(fields, self.path)

    def fail(self, field: str, expected: str) -> NoReturn:
        raise BadConfig(self.path, field, expected)

    def _required(self, field: str, expected: str) -> Any:
        if field not in self._fields:
            self.fail(field, f"is missing, expected {expected}")
        return self.value(field)


def _is_index(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end
