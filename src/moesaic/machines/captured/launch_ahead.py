"""The next step's launch, before its inputs are known: launching a graph of hundreds of kernels
takes the host long enough that the GPU would be idle between two tokens.

A launch waits on the GPU until its step begins. One that is not claimed goes through without
effect, after a while by itself (native/conductor/ahead.cpp): until then, a thread that waits for
the whole GPU would wait for it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from moesaic.machines.captured.conductor import Conductor


@dataclass(slots=True)
class _Waiting:
    kind: Hashable
    after: torch.cuda.Event  # the end of the step in front of it
    ended: torch.cuda.Event
    active: torch.Tensor
    expected: bool = False  # by the conductor, too


class LaunchAhead:
    """Launches on one stream; `kind` says which graph it is. A signal may interrupt the calling
    thread anywhere: what may wait on the GPU is noted before it is launched, and forgotten when it
    has ended."""

    def __init__(self, conductor: Conductor, stream: torch.cuda.Stream) -> None:
        self._conductor, self._stream = conductor, stream
        self._events = cycle([torch.cuda.Event() for _ in range(2)])
        self._waiting: _Waiting | None = None

    def launch(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.Event:
        """Launch on the current stream; return the event recorded after the graph."""
        return _launched(graph, next(self._events))

    def launch_next(
        self,
        kind: Hashable,
        graph: torch.cuda.CUDAGraph,
        active: torch.Tensor,
        after: torch.cuda.Event,
    ) -> None:
        """Launch the step after the one under way, which ends with `after`; `active`: how many
        tokens it has, in host memory."""
        waiting = self._waiting = _Waiting(kind, after, next(self._events), active)
        _launched(graph, waiting.ended)

    def expect_it(self) -> None:
        """From here on the launch may run by itself, over the results of the step before."""
        waiting = self._waiting
        if waiting is not None and not waiting.expected:
            self._conductor.expect(waiting.active)
            waiting.expected = True

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
        """No launch waits any more, and none is under way. A step that was interrupted ends
        first: it may not have taken its own word to begin yet, and there is one at a time."""
        waiting = self._waiting
        try:
            if waiting is not None and not waiting.expected:
                waiting.after.synchronize()
                self.expect_it()
            self._conductor.let_through()
            self._stream.synchronize()
        except RuntimeError:  # the GPU is lost, and nothing waits there
            self._waiting = None
            raise
        self._waiting = None


def _launched(graph: torch.cuda.CUDAGraph, ended: torch.cuda.Event) -> torch.cuda.Event:
    graph.replay()
    ended.record()
    return ended
