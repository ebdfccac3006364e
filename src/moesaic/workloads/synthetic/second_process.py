"""A second process that makes documents of a synthetic trace ahead of their reader.

A large batch begins with hundreds of documents at once, which takes longer than simulating their
tokens. A document depends on nothing but its number, so who makes it changes nothing: the process
works ahead, and the reader makes what the process has not begun. A program of its own and not a
fork, so that neither the reader's threads nor its main module matter."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from threading import Condition, Thread
from typing import IO

from moesaic.workloads.block import RoutingBlock

Blocks = list[RoutingBlock]
Maker = Callable[[int, int], Blocks]  # of a document's number and its tokens; can be pickled

AHEAD_TOKENS = 32_768  # of documents that nobody has read: a few hundred MB at most
_IN_LINE = 2  # documents the process knows of: it is never idle, and can still be overtaken


def make_documents(
    make: Maker, lengths: Iterator[int], first: int
) -> Generator[Blocks, None, None]:
    """Documents from number `first` on, of so many tokens each, in order."""
    ahead = _Ahead(make, lengths, first)
    try:
        while True:
            yield ahead.next()
    finally:
        ahead.close()


class _Ahead:
    """What is asked of the process and what it has answered. The reader and the thread that
    listens to the process share it."""

    def __init__(self, make: Maker, lengths: Iterator[int], first: int) -> None:
        self._make, self._lengths = make, lengths
        self._read = first  # the reader's next document
        self._next = first  # the first that nobody has begun
        self._asked: dict[int, int] = {}  # document -> tokens
        self._lost: dict[int, int] = {}  # asked of a process that has died
        self._answers: dict[int, Blocks] = {}
        self._tokens = 0  # in answers
        self._dead = False
        self._changed = Condition()
        paths = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # an interrupt is the reader's business
        )
        with self._changed, suppress(OSError):
            self._send(make)
            self._ask()
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def next(self) -> Blocks:
        number = self._read
        self._read += 1
        with self._changed:
            self._changed.wait_for(lambda: number not in self._asked)
            found = self._answers.pop(number, None)
            if found is not None:
                self._tokens -= sum(map(len, found))
                with suppress(OSError):
                    self._ask()
                return found
            length = self._lost.pop(number, None)
            if length is None:
                assert number == self._next, "everything before has been begun"
                self._next, length = number + 1, next(self._lengths)
        return self._make(number, length)

    def close(self) -> None:
        self._process.kill()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()

    def _ask(self) -> None:
        """For as much as it may know of; the lock is held."""
        while not self._dead and len(self._asked) < _IN_LINE and self._tokens < AHEAD_TOKENS:
            number, length = self._next, next(self._lengths)
            self._next, self._asked[number] = number + 1, length
            self._send((number, length))

    def _send(self, what: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(what, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(EOFError, OSError, pickle.UnpicklingError, ValueError):
            while True:
                number, blocks = pickle.load(self._process.stdout)
                with self._changed:
                    del self._asked[number]
                    self._answers[number] = blocks
                    self._tokens += sum(map(len, blocks))
                    self._changed.notify_all()
                    self._ask()
        with self._changed:
            self._lost |= self._asked
            self._asked = {}
            self._dead = True
            self._changed.notify_all()


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """The process: documents until nobody asks for more."""
    with suppress(EOFError, BrokenPipeError):
        make: Maker = pickle.load(requests)
        while True:
            number, length = pickle.load(requests)
            found = number, make(number, length)
            pickle.dump(found, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
