"""Ctrl-C while the command line is still being imported ends the process without a traceback.

Importing this module, first of all, sets the signal's default action; `over` gives Python's
handler back, whose KeyboardInterrupt `main` reports. What is ignored stays ignored.
"""

from __future__ import annotations

import signal
import threading

_caught = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _caught:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def over() -> None:
    if _caught and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
