"""Processes that compute parts of a study, and the message when one of them ends too early."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from multiprocessing import get_context
from pathlib import Path

from moesaic.core.errors import WorkerEnded

STARTED_AGAIN = 70  # exit status of a worker whose script starts the same work without a guard
_GUARD = 'if __name__ == "__main__":'


# Makes a pool that does so many parts at the same time.
MakePool = Callable[[int], AbstractContextManager[Executor]]


@contextmanager
def worker_pool(jobs: int) -> Iterator[Executor]:
    """Processes of this machine, or what `pools_from` has put in their place."""
    with _make.get()(jobs) as pool:
        yield pool


@contextmanager
def pools_from(make: MakePool) -> Iterator[None]:
    """Pools that are made in here are these: processes of other machines, for instance."""
    token = _make.set(make)
    try:
        yield
    finally:
        _make.reset(token)


@contextmanager
def _local_pool(jobs: int) -> Iterator[Executor]:
    """Spawned rather than forked: a progress bar has a thread, and a fork copies locks. What ends
    the work (Ctrl-C, a mistake) also ends what is running, which may take minutes; the workers must
    therefore write nothing."""
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    workers = pool._processes
    try:
        yield pool
    except BrokenProcessPool:
        pool.shutdown()
        raise WorkerEnded(_why([process.exitcode for process in workers.values()])) from None
    except BaseException:
        for process in list((workers or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_make: ContextVar[MakePool] = ContextVar("make", default=_local_pool)


def imports_its_script() -> bool:
    """Whether this process is a worker that still imports the script of the process that has
    started it: what that script does outside its guard is done again."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


def _why(statuses: Sequence[int | None]) -> str:
    """The pool ends the other workers with SIGTERM, which says nothing."""
    own = [status for status in statuses if status is not None and status > 0]
    if not own:
        return (
            "a process that computed a part of this was ended from outside, most likely for lack "
            "of memory: close other programs, or let fewer compute at once (--jobs 1)"
        )
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "the script").name
    if STARTED_AGAIN in own:
        return (
            f"every worker process imports {script}, which starts the same work again: put what it "
            f"does under {_GUARD}, or compute in one process (--jobs 1)"
        )
    return (
        f"a process that computed a part of this ended by itself with status {own[0]}; its own "
        f"message stands above. Each of them imports {script}: where that is a script of yours, "
        f"what it does must stand under {_GUARD}"
    )
