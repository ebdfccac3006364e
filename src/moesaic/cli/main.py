"""The `moesaic` command's first lines: from here on, Ctrl-C prints no traceback.

While the rest is imported it has the signal's default action, which ends the process; then
`command_line.run` gives Python's handler back, whose KeyboardInterrupt it reports. What is ignored
stays ignored. Before `main` Ctrl-C is Python's own, so this file and the packages around it import
what is built in only: `signal`, or even `__future__`, takes longer than all of them.
"""

import _signal  # type: ignore[import-not-found]


def main() -> None:
    caught = _replaced(_signal.default_int_handler, _signal.SIG_DFL)
    from moesaic.cli.command_line import run

    run(lambda: caught and _replaced(_signal.SIG_DFL, _signal.default_int_handler))


def _replaced(handler: object, by: object) -> bool:
    """Whether it was this handler. Only the main thread may set another."""
    if _signal.getsignal(_signal.SIGINT) != handler:
        return False
    try:
        _signal.signal(_signal.SIGINT, by)
    except ValueError:
        return False
    return True
