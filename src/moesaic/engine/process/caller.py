"""One caller as the engine sees it: its requests, and messages that it has not read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from moesaic.engine.request import Request


class Unsent(NamedTuple):
    data: bytes
    of_step: bool


@dataclass(slots=True, eq=False)
class Caller:
    """Credit: so many messages are sent without being read; further ones are `unsent`."""

    identity: bytes  # of the connection, as the socket knows it
    connection: int
    requests: dict[int, Request | None] = field(default_factory=dict)  # None: it is being made
    unsent: deque[Unsent] = field(default_factory=deque)
    waits_since: float | None = None  # when the credit was used up and a message had to wait
    _unread: int = 0

    def next_to_send(self, credit: int) -> bytes | None:
        """The caller of this method sends it."""
        if not self.unsent:
            self.waits_since = None
            return None
        if self._unread >= credit:
            self.waits_since = monotonic() if self.waits_since is None else self.waits_since
            return None
        self._unread += 1
        return self.unsent.popleft().data

    def has_read(self, messages: int) -> None:
        self._unread = max(0, self._unread - messages)

    def drop_results(self) -> None:
        """Those of steps, unsent: their requests have been cancelled."""
        self.unsent = deque(each for each in self.unsent if not each.of_step)
        self.waits_since = None
