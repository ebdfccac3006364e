"""Questions to an engine in another process, by number, until they are answered."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import count
from typing import Any, TypeVar

from moesaic.engine.insight.settle import refuse, settle

Answer = TypeVar("Answer")


class Questions:
    """Used by the client's thread alone."""

    def __init__(self) -> None:
        self._numbers = count()
        self._open: dict[int, Future[Any]] = {}

    def ask(self, answer: Future[Answer]) -> int:
        """The question's number, for the message."""
        number = next(self._numbers)
        self._open[number] = answer
        return number

    def answer(self, number: int, value: object, error: Exception | None) -> None:
        asked = self._open.pop(number, None)
        if asked is None:
            return
        if error is None:
            settle(asked, lambda: value)
        else:
            refuse(asked, error)

    def fail_all(self, error: Exception) -> None:
        for number in list(self._open):
            self.answer(number, None, error)
