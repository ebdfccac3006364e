"""Answers to futures that another thread may cancel at any moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def settle(result: Future[Value], make: Callable[[], Value]) -> None:
    """Give it what is made, or why it cannot be; a cancelled one, nothing. Called once for each."""
    if not result.set_running_or_notify_cancel():
        return
    try:
        value = make()
    except Exception as error:
        result.set_exception(error)
    else:
        result.set_result(value)


def refuse(result: Future[Value], error: Exception) -> None:
    if result.set_running_or_notify_cancel():
        result.set_exception(error)
