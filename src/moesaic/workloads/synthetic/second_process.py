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
from moesaic.workloads.synthetic.document_part import DocumentPart

Blocks = list[RoutingBlock]
Maker = Callable[[DocumentPart], Blocks]  # can be pickled

AHEAD_TOKENS = 32_768  # of documents that were not read yet: a few hundred MB at most
_IN_LINE = 2  # documents the process knows of: it is never idle, and can still be overtaken


def make_documents(make: Maker, parts: Iterator[DocumentPart]) -> Generator[Blocks, None, None]:
    """All parts in order."""
    ahead = _Ahead(make, parts)
    try:
        while (blocks := ahead.next()) is not None:
            yield blocks
    finally:
        ahead.close()


class _Ahead:
    """What is asked of the process and what it has answered. The reader and the thread that
    listens to the process share it."""

    def __init__(self, make: Maker, parts: Iterator[DocumentPart]) -> None:
        self._make, self._parts = make, parts
        self._read = 0  # the reader's next part, counted from the first of them
        self._next = 0  # the first that is not begun
        self._asked: dict[int, DocumentPart] = {}
        self._lost: dict[int, DocumentPart] = {}  # asked of a process that has died
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

    def next(self) -> Blocks | None:
        """None behind the last."""
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
            part = self._lost.pop(number, None)
            if part is None:
                assert number == self._next, "everything before has been begun"
                self._next, part = number + 1, next(self._parts, None)
        return None if part is None else self._make(part)

    def close(self) -> None:
        self._process.kill()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()

    def _ask(self) -> None:
        """Ask for as much as it may know of; the lock is held."""
        while not self._dead and len(self._asked) < _IN_LINE and self._tokens < AHEAD_TOKENS:
            part = next(self._parts, None)
            if part is None:
                return
            number, self._next = self._next, self._next + 1
            self._asked[number] = part
            self._send((number, part))

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
    """The process: documents until no more are asked for."""
    with suppress(EOFError, BrokenPipeError):
        make: Maker = pickle.load(requests)
        while True:
            number, part = pickle.load(requests)
            found = number, make(part)
            pickle.dump(found, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
