"""The program of an engine's process: `python -m moesaic.engine.process.child FOLDER`.

Its standard input has the pickled `Launch`, and ends when the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PARENT_DEATH = 1  # prctl's PR_SET_PDEATHSIG


def main() -> None:
    _end_with_parent()  # before imports that take seconds
    from moesaic.engine.process.engine_run import run

    run(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is closed, and Python would take a second to forget its modules


def _end_with_parent() -> None:
    """Also where no Python code can run any more. Elsewhere than on Linux, the pipe alone says that
    the parent has ended."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
