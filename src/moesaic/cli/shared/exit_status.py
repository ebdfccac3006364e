"""The exit status of a command follows from the kind of what went wrong; docs/command-line.md."""

from __future__ import annotations

from moesaic.core.errors import BadFile, EngineFailed, ImpossibleRequest, ModelFault

REQUEST, INCOMPLETE, FILE, MODEL, ENGINE, INTERRUPTED = 2, 3, 4, 5, 6, 130
STATUSES: dict[type[Exception], int] = {
    ImpossibleRequest: REQUEST,
    BadFile: FILE,
    OSError: FILE,  # it cannot be read or written
    ModelFault: MODEL,
    EngineFailed: ENGINE,
}


def exit_status(error: BaseException) -> int:
    """What is of no kind is how the command was called, which click reports."""
    found = [status for kind, status in STATUSES.items() if isinstance(error, kind)]
    return found[0] if found else REQUEST
