"""Who registers policies at the moment: a plugin that is being imported, or the package itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Registering:
    """The plugin that is being imported: `plugin` is what `load_plugin` takes, in another process
    too (None: an installed one, which is found by itself), `origin` its name for users. `undo` and
    `checks` are added by everything that it registers."""

    plugin: str | None
    origin: str
    undo: list[Callable[[], object]] = field(default_factory=list)
    checks: list[Callable[[], object]] = field(default_factory=list)


_registering: ContextVar[Registering | None] = ContextVar("registering", default=None)


@contextmanager
def registering(by: Registering) -> Iterator[None]:
    before = _registering.set(by)
    try:
        yield
    finally:
        _registering.reset(before)


def registering_now() -> Registering | None:
    return _registering.get()
