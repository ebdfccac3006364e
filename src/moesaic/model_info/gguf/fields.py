"""From GGUF keys to the fields of a config.json, one at a time, remembering which key each came
from, so that a complaint about a field names the key that is in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from moesaic.model_info.config_reader import MAX_COUNT, ConfigReader
from moesaic.model_info.gguf.header import Header, TensorInfo


class GgufConfig(ConfigReader):
    """A config.json's fields whose values came from GGUF keys."""

    def __init__(self, fields: Mapping[str, Any], origins: Mapping[str, str], path: object) -> None:
        super().__init__(fields, path)
        self._origins = origins

    def nested(self, fields: Mapping[str, Any]) -> GgufConfig:
        return GgufConfig(fields, self._origins, self.path)

    def fail(self, field: str, expected: str) -> NoReturn:
        super().fail(self._origins.get(field, field), expected)


class Fields:
    """Reads keys of one architecture (`qwen3moe.block_count` by its end) and collects fields."""

    def __init__(self, header: Header, architecture: str) -> None:
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self.architecture = architecture
        self._keys = ConfigReader(header.metadata, header.path)
        self._path = header.path
        self._fields: dict[str, Any] = {}
        self._origins: dict[str, str] = {}

    def config(self) -> GgufConfig:
        return GgufConfig(self._fields, self._origins, self._path)

    def put(self, field: str, value: Any, key: str | None = None) -> None:
        self._fields[field] = value
        if key is not None:
            self.put_origin(field, key)

    def put_origin(self, field: str, key: str) -> None:
        self._origins[field] = self._full(key)

    def put_count(self, field: str, key: str, minimum: int = 1) -> int:
        value = self.count(key, minimum)
        self.put(field, value, key)
        return value

    def put_number(self, field: str, key: str) -> None:
        self.put(field, self.number(key), key)

    def has(self, key: str) -> bool:
        return self._keys.has(self._full(key))

    def value(self, key: str) -> Any:
        return self._keys.value(self._full(key))

    def count(self, key: str, minimum: int = 1, default: int | None = None) -> int:
        """A whole number; a list of it, one for each layer, where all of them are the same."""
        if default is not None and not self.has(key):
            return default
        value = self.value(key)
        if isinstance(value, list):
            return self._same(key, value, minimum)
        return self._keys.count(self._full(key), minimum)

    def number(self, key: str, default: float | None = None) -> float:
        if default is not None and not self.has(key):
            return default
        return self._keys.number(self._full(key))

    def flag(self, key: str, default: bool) -> bool:
        return self._keys.flag(self._full(key)) if self.has(key) else default

    def text(self, key: str, options: tuple[str, ...]) -> str:
        return self._keys.choice(self._full(key), options)

    def fail(self, key: str, expected: str) -> NoReturn:
        self._keys.fail(self._full(key), expected)

    def unread(self) -> dict[str, Any]:
        """Keys of the architecture that nothing has read, by their ends."""
        start = f"{self.architecture}."
        found = self._keys.unread().items()
        return {key.removeprefix(start): value for key, value in found if key.startswith(start)}

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _same(self, key: str, values: list[Any], minimum: int) -> int:
        if not values or any(value != values[0] for value in values):
            self.fail(key, "differs from layer to layer, which cannot be run")
        whole = isinstance(values[0], int) and not isinstance(values[0], bool)
        if not whole or not minimum <= values[0] <= MAX_COUNT:
            self.fail(key, f"expected a whole number of {minimum} or more for each layer")
        return int(values[0])
