"""Lets signals wait while the compiler calls back into Python.

LLVM calls Python functions when it has made machine code. A signal that came meanwhile is handled
in them, and what its handler raises (KeyboardInterrupt, the end by SIGTERM) is printed as
"Exception ignored" and lost: the process goes on, without the code of which LLVM told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import FrameType
from typing import Any

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Handlers in Python that end the process run at the end of the block. Python handles signals
    in its main thread only, so that other threads need nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    try:
        with ExitStack() as handlers:
            for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers.callback(signal.signal, number, handler)
                    signal.signal(number, note)
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@cache
def defer_signals_in(engine: Any) -> None:
    """Make numba's engine, which has one for all functions, defer signals while it makes code."""
    finalize = engine.finalize_object

    def finalize_object() -> None:
        with deferred_signals():
            finalize()

    engine.finalize_object = finalize_object
