"""Ctrl-C while the command line is still being imported ends the process without a traceback.

Importing this module, first of all, sets the signal's default action; `over` gives Python's
handler back, whose KeyboardInterrupt `main` reports. What is ignored stays ignored. Until here
Ctrl-C is Python's own, so this imports what is built in only: `signal` takes longer than all else.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]


def _replaced(handler: object, by: object) -> bool:
    """Whether it was this handler. Only the main thread may set another."""
    if _signal.getsignal(_signal.SIGINT) != handler:
        return False
    try:
        _signal.signal(_signal.SIGINT, by)
    except ValueError:
        return False
    return True


_caught = _replaced(_signal.default_int_handler, _signal.SIG_DFL)


def over() -> None:
    if _caught:
        _replaced(_signal.SIG_DFL, _signal.default_int_handler)
