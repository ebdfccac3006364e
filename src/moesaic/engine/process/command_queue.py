"""Commands for a thread that waits for messages: putting one wakes it up."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock

Command = Callable[[], None]


class CommandQueue:
    """`fd` can be read while there are commands. Any thread puts, one runs them."""

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._lock = Lock()  # the descriptors are closed once, and not used afterwards
        self._closed = False
        self.fd, self._writing = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writing, False)

    def put(self, command: Command) -> bool:
        """False: the queue is closed, and the command will not run."""
        with self._lock:
            if self._closed:
                return False
            self._commands.put(command)
            with suppress(BlockingIOError):  # a full pipe wakes the thread up as well
                os.write(self._writing, b"\0")
            return True

    def run(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def close(self) -> None:
        """Take no more commands, and run those that were put before."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.run()
        os.close(self.fd)
        os.close(self._writing)
