"""Names to implementations, without importing the implementations until they are asked for.

A registry knows one kind of thing (schedules, caches, ...). Registering is one line in the
package's `__init__`; the command line reads its choices and their descriptions from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from moesaic.core.errors import UnknownName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an implementation lives (`module:attribute`) and one line about it."""

    target: str
    summary: str


class Registry(Generic[T]):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def register(self, name: str, target: str, summary: str) -> None:
        assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
        self._entries[name] = Entry(target, summary)

    def load(self, name: str) -> type[T]:
        """The implementation's class; imports its module."""
        if name not in self._entries:
            raise UnknownName(self.kind, name, self._entries)
        module, _, attribute = self._entries[name].target.partition(":")
        implementation: type[T] = getattr(import_module(module), attribute)
        return implementation

    def create(self, name: str, *args: Any, **settings: Any) -> T:
        return self.load(name)(*args, **settings)

    def summary(self, name: str) -> str:
        return self._entries[name].summary

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
