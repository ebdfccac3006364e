"""Names to implementations, without importing the implementations until they are asked for.

A registry knows one kind of thing (schedules, caches, ...). Registering is one statement in the
package's `__init__`; the command line reads its choices, their descriptions and their parameters
from here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from moesaic.core.errors import UnknownName
from moesaic.core.parameter import Parameter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an implementation lives (`module:attribute`), one line about it, and the parameters
    that its constructor takes as keywords."""

    target: str
    summary: str
    parameters: tuple[Parameter, ...] = ()


class Registry(Generic[T]):
    """`shared` are parameters that every entry has in addition to its own. They concern the
    composition of a brain, not the implementation, whose constructor does not get them."""

    def __init__(self, kind: str, shared: tuple[Parameter, ...] = ()) -> None:
        self.kind, self.shared = kind, shared
        self._entries: dict[str, Entry] = {}

    def register(
        self, name: str, target: str, summary: str, parameters: tuple[Parameter, ...] = ()
    ) -> None:
        assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
        every = [parameter.name for parameter in (*parameters, *self.shared)]
        assert len(set(every)) == len(every), f"{self.kind} {name!r} has a parameter twice"
        self._entries[name] = Entry(target, summary, parameters)

    def entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise UnknownName(self.kind, name, self._entries)
        return self._entries[name]

    def load(self, name: str) -> type[T]:
        """The implementation's class; imports its module."""
        module, _, attribute = self.entry(name).target.partition(":")
        implementation: type[T] = getattr(import_module(module), attribute)
        return implementation

    def create(self, name: str, *args: Any, **settings: Any) -> T:
        return self.load(name)(*args, **settings)

    def summary(self, name: str) -> str:
        return self._entries[name].summary

    def parameters(self, name: str) -> tuple[Parameter, ...]:
        """Its own, then those that all of its kind have."""
        return (*self.entry(name).parameters, *self.shared)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
