"""What another thread has for the queues of an event loop. Waking a loop is a system call, which
events that come together share."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class LoopMailbox:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[asyncio.Queue[Any], Any]] = deque()
        self._woken = False  # `_deliver` is about to run

    def put(self, queue: asyncio.Queue[Any], item: object) -> None:
        """Called by any thread; a `RuntimeError` says that the loop is closed."""
        self._items.append((queue, item))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            self._woken = False
            self._items.clear()
            raise

    def _deliver(self) -> None:
        self._woken = False  # first: what comes from here on wakes the loop again
        while self._items:
            queue, item = self._items.popleft()
            queue.put_nowait(item)
