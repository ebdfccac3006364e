"""The connection to one engine's process, from its start to its end."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import zmq

from moesaic.engine.process import messages as m
from moesaic.engine.process.engine_process import EngineProcess, Launch

_TICK_MS, _SHORT_TICK_MS = 500, 50  # the latter where the system cannot report the process's end
_AT_ONCE = 64  # messages


class EngineLink:
    def __init__(
        self, launch: Launch, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller
    ) -> None:
        self._poller = poller
        self.process = EngineProcess(launch)
        try:
            self.socket = _connected(context, self.process.address)
        except BaseException:
            self.process.remove()
            raise
        poller.register(self.socket, zmq.POLLIN)
        if self.process.ended_fd is not None:
            poller.register(self.process.ended_fd, zmq.POLLIN)
        self.ready = self.closed = False
        self.connection: int | None = None
        self.failure: Exception | None = None  # why the model could not be loaded
        self._credit = launch.options.unread_messages
        self._unreported = self._messages = 0
        self._progress: tuple[int, ...] = ()
        self._progressed_at = monotonic()
        self._without_progress_s: float | None = None

    @property
    def tick_ms(self) -> int:
        return _SHORT_TICK_MS if self.process.ended_fd is None else _TICK_MS

    def send(self, message: m.FromCaller) -> None:
        self.socket.send(m.encode(message))

    def received(self) -> Iterator[m.FromEngine]:
        """Those that have arrived; the engine is told that they are read."""
        for _ in range(_AT_ONCE):
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unreported += 1
            if self._unreported >= max(1, self._credit // 8):
                self.send(m.Read(self._unreported))
                self._unreported = 0
            message = m.decode_from_engine(data)
            self._messages += not isinstance(message, m.Stats)
            yield message

    def watch(self, has_work: bool, stall_s: float | None) -> None:
        """End the process if it has work and has made no progress for so long: no step has begun or
        ended, and no message has come but for statistics."""
        record = self.process.record.read()
        progress = (record.begun, record.ended, self._messages)
        if not has_work or progress != self._progress:
            self._progress, self._progressed_at = progress, monotonic()
        elif stall_s is not None and monotonic() - self._progressed_at > stall_s:
            self._without_progress_s = stall_s
            self.process.kill()

    def end_text(self) -> str:
        return self.process.end_text(self.connection, self._without_progress_s)

    def close(self) -> None:
        """Leave nothing of it, the process neither."""
        self._poller.unregister(self.socket)
        if self.process.ended_fd is not None:
            self._poller.unregister(self.process.ended_fd)
        self.socket.close(linger=0)
        self.process.remove()


def _connected(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    made.set(zmq.SNDHWM, 0)
    made.set(zmq.RCVHWM, 0)
    made.set(zmq.LINGER, 0)
    made.connect(address)
    return made
