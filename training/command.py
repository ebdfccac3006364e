"""How every script here ends when its user asked for something impossible."""

from __future__ import annotations

import sys
from collections.abc import Callable

from moesaic.core.errors import MoesaicError


def run_command(main: Callable[[], None]) -> None:
    """A mistake is one message and exit status 2; an interruption is 130."""
    try:
        main()
    except MoesaicError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
