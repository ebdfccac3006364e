"""Work in a process of its own, which ends when its caller does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.lab.user_environment import inherited

ResultT = TypeVar("ResultT")


def in_own_process(
    name: str,
    work: Callable[..., ResultT],
    *arguments: object,
    environment: Mapping[str, str] | None = None,
) -> ResultT:
    """`name` is whose work it is, for messages; `environment`: not this process's. An interrupt
    does not wait for the work."""
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, work, arguments))
    with inherited(os.environ if environment is None else environment):
        process.start()
    there.close()
    try:
        done, found = here.recv()
    except EOFError:
        raise ImpossibleSetting(
            f"{name} ended before it had measured anything, perhaps for lack of memory: use a "
            "smaller model, or fewer --layers"
        ) from None
    finally:
        process.kill()
        process.join()
        here.close()
    if not done:
        raise ImpossibleSetting(f"{name}{found}")
    result: ResultT = found
    return result


def _work(there: Connection, work: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    """Sends what was found, or in words why nothing was: not every error can be sent itself.
    Ctrl-C is the caller's business, who then ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        there.send((True, work(*arguments)))
    except MoesaicError as error:
        there.send((False, f": {error}"))
    except Exception as error:
        said = (str(error).strip().splitlines() or ["it said nothing"])[0]
        there.send((False, f" failed with {type(error).__name__}: {said}"))
