"""Raises KeyboardInterrupt before any chosen line of the real machine."""

from __future__ import annotations

import sys
from functools import cache
from linecache import getline
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import moesaic.engine.runner
import moesaic.machines.captured
import moesaic.machines.cpu_step
import moesaic.machines.layerwise
import moesaic.machines.loop
import moesaic.machines.real

FOLDERS = (
    moesaic.machines.real,
    moesaic.machines.layerwise,
    moesaic.machines.cpu_step,
    moesaic.machines.captured,
)
WHERE = (
    *(str(Path(str(folder.__file__)).parent) for folder in FOLDERS),
    moesaic.engine.runner.__file__,
    moesaic.machines.loop.__file__,
)


class Interrupt:
    """While it is entered, this thread gets a KeyboardInterrupt before the `at`-th line it would
    run in the machine, the loop or the runner, or in files that begin like `where`; `lines` says
    how many it did run."""

    def __init__(self, at: int | None = None, where: tuple[str, ...] = WHERE) -> None:
        self.at, self.lines, self._where = at, 0, where

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._ran if frame.f_code.co_filename.startswith(self._where) else None

    def _ran(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not _is_with(frame.f_code.co_filename, frame.f_lineno):
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self._ran


@cache
def _is_with(file: str, line: int) -> bool:
    """Leaving a `with` is a line too, but no signal is ever handled there."""
    return getline(file, line).strip().startswith("with ")
