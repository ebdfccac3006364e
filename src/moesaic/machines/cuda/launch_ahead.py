"""The next step's launch, before its inputs are known: launching a graph of hundreds of kernels
takes the host long enough that the GPU would be idle between two tokens.

A launch waits on the GPU until its step begins. One that nobody claims goes through without effect,
after a while by itself (native/conductor/ahead.cpp): until then, whoever waits for the whole GPU
would wait for it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import cycle

import torch

from moesaic.machines.cuda.conductor import Conductor


@dataclass(slots=True)
class _Waiting:
    kind: Hashable
    ended: torch.cuda.Event
    active: int
    expected: bool = False  # by the conductor, too


class LaunchAhead:
    """Launches on one stream; `kind` says which graph it is."""

    def __init__(self, conductor: Conductor, stream: torch.cuda.Stream) -> None:
        self._conductor, self._stream = conductor, stream
        self._events = cycle([torch.cuda.Event() for _ in range(2)])
        self._waiting: _Waiting | None = None

    def launch(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.Event:
        """On the current stream; returns its end."""
        graph.replay()
        ended = next(self._events)
        ended.record()
        return ended

    def launch_next(self, kind: Hashable, graph: torch.cuda.CUDAGraph, active: int) -> None:
        """For the step after the one under way; `active` is the address of how many tokens it
        has."""
        self._waiting = _Waiting(kind, self.launch(graph), active)

    def expect_it(self) -> None:
        """From here on it may go through by itself, over the results of the step before."""
        if self._waiting is not None and not self._waiting.expected:
            self._waiting.expected = True
            self._conductor.expect(self._waiting.active)

    def claim(self, kind: Hashable) -> torch.cuda.Event | None:
        """The end of the launch that waits for such a step, which may be prepared and begun now;
        None: there is none, and the stream is idle."""
        waiting = self._waiting
        if waiting is not None and waiting.kind == kind and self._conductor.claim():
            self._waiting = None
            return waiting.ended
        self.cancel()
        return None

    def cancel(self) -> None:
        """No launch waits any more, and none is under way. Between steps."""
        self.expect_it()
        waited, self._waiting = self._waiting is not None, None
        if self._conductor.let_through() or waited:
            self._stream.synchronize()
