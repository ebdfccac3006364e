"""Signals that end a process, in an event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def caught_signals(end: Callable[[int], object]) -> Iterator[None]:
    """Call `end` with the number of each that arrives. What is ignored stays ignored, as `nohup`
    requires."""
    loop = asyncio.get_running_loop()
    caught = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.getsignal(number) for number in caught}
    for number in caught:
        loop.add_signal_handler(number, partial(end, number))
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
