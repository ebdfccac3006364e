"""Options as decorators: several as one, and their choices in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def one_of(names: Iterable[str]) -> str:
    return " | ".join(names)


def stack(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, in the order written."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
