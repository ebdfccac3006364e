"""A lane: works off one job at a time, in order, on a thread of its own or on the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

import torch

Job = Callable[[], None]
_LOOK_AGAIN_S = 1.0


class Lane(Protocol):
    def submit(self, job: Job) -> None: ...

    def wake(self) -> None:
        """Wait until the first submitted job has begun. A thread needs the GIL to start: a caller
        that keeps running Python code without this may delay it."""

    def join(self) -> None:
        """Wait until every submitted job is done; raise what the first failing one raised."""

    def reset(self) -> None:
        """After an interruption, which may have come between any two lines: until every job is
        done, whatever became of it, and then as if there had been none."""

    def close(self) -> None: ...


class InlineLane:
    """Runs jobs on the caller's thread: no hand-over, no parallelism."""

    def submit(self, job: Job) -> None:
        job()

    def wake(self) -> None:
        pass

    def join(self) -> None:
        pass

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadLane:
    """`threads` is how many cores torch may use for one job of this lane."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._jobs: SimpleQueue[Job | threading.Event | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._begun: SimpleQueue[BaseException | None] = SimpleQueue()
        self._open = self._seen = 0  # jobs since the last join: submitted, seen to begin
        self._thread = threading.Thread(
            target=self._work, args=(threads,), name=f"moesaic-{name}", daemon=True
        )
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._open += 1
        self._jobs.put(job)

    def wake(self) -> None:
        if self._open and not self._seen:
            self._take(self._begun)
            self._seen = 1

    def join(self) -> None:
        failure: BaseException | None = None
        while self._open:
            outcome = self._take(self._done)
            if self._seen:
                self._seen = 0
            else:
                self._begun.get()  # it ended, so it began
            self._open -= 1
            failure = failure or outcome
        if failure is not None:
            raise failure

    def reset(self) -> None:
        reached = threading.Event()
        self._jobs.put(reached)
        while not reached.wait(_LOOK_AGAIN_S):
            self._check_alive()
        self._done, self._begun = SimpleQueue(), SimpleQueue()
        self._open = self._seen = 0

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _take(self, answers: SimpleQueue[BaseException | None]) -> BaseException | None:
        while True:
            try:
                return answers.get(timeout=_LOOK_AGAIN_S)
            except Empty:
                self._check_alive()

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise RuntimeError(f"the thread {self._thread.name} died") from None

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)  # of this thread only
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                if isinstance(job, threading.Event):
                    job.set()
                    continue
                self._begun.put(None)
                try:
                    job()
                    self._done.put(None)
                except BaseException as failure:  # raised by join
                    self._done.put(failure)
                del job  # it refers to the whole machine, which may go while this waits
