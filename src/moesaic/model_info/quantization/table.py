"""Typed access to the `quantization_config` of a config.json, or to a table inside it; errors name
the whole path of a field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader

MAX_GROUP = 1 << 20  # weights that share a scale


class Table(ConfigReader):
    def __init__(self, fields: Mapping[str, Any], path: object, name: str) -> None:
        super().__init__(fields, path)
        self._name = name

    def inner(self, field: str) -> Table:
        return Table(self.table(field), self.path, f"{self._name}.{field}")

    def one_of(self, field: str, options: Sequence[int]) -> int:
        value = self.value(field)
        if type(value) is not int or value not in options:
            expected = " or ".join(map(str, options))
            self.fail(field, f"expected {expected}, not {short(value)}")
        return value

    def group(self, field: str) -> int | None:
        """How many weights share a scale; -1, for a whole row, is None."""
        if self.value(field) == -1:
            return None
        return self.count(field, maximum=MAX_GROUP)

    def block(self, field: str) -> tuple[int, int]:
        value = self.value(field)
        whole = isinstance(value, list) and all(type(size) is int for size in value)
        if not whole or len(value) != 2 or not all(1 <= size <= MAX_GROUP for size in value):
            self.fail(field, f"expected the rows and columns of a block, not {short(value)}")
        return value[0], value[1]

    def fail(self, field: str, expected: str) -> NoReturn:
        super().fail(f"{self._name}.{field}", expected)
