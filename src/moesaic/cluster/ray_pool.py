"""Processes of a Ray cluster that compute parts of a study, as those of one machine do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from moesaic.core.errors import WorkerEnded

P = ParamSpec("P")
T = TypeVar("T")
_ENDED = (
    "a process of the cluster that computed a part of this has ended, most likely for lack of "
    "memory or because its machine was lost: let fewer compute at once (--jobs), or run without "
    "--ray"
)


class RayPool(Executor):
    """At most `jobs` parts at the same time; each has one core of the cluster."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._lock = Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running: dict[Any, Future[Any]] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        wanted: Future[T] = Future()
        with self._lock:
            self._waiting.append((wanted, partial(fn, *args, **kwargs)))
        self._start()
        return wanted

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What runs is ended where nothing more is wanted of it."""
        import ray

        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            running = list(self._running)
        for wanted, _ in waiting:
            wanted.cancel()
        if cancel_futures:
            for reference in running:
                ray.cancel(reference, force=True)

    def _start(self) -> None:
        """As many as may run."""
        import ray

        while True:
            with self._lock:
                if not self._waiting or len(self._running) >= self._jobs:
                    return
                wanted, work = self._waiting.popleft()
                reference = ray.remote(_run).options(num_cpus=1, max_retries=0).remote(work)
                self._running[reference] = wanted
            reference.future().add_done_callback(partial(self._done, reference))

    def _done(self, reference: Any, future: Future[Any]) -> None:
        with self._lock:
            wanted = self._running.pop(reference)
        error = future.exception()
        if error is None:
            wanted.set_result(future.result())
        else:
            wanted.set_exception(_own(error))
        self._start()


@contextmanager
def ray_pool(jobs: int) -> Iterator[Executor]:
    pool = RayPool(jobs)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _run(work: Callable[[], Any]) -> Any:
    return work()


def _own(error: BaseException) -> BaseException:
    """What was raised there, without Ray's words around it."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, BaseException) else error
    return WorkerEnded(_ENDED) if isinstance(error, RayError) else error
