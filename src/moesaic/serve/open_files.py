"""How many files this process may have open: a connection is one, and so is an engine's socket."""

from __future__ import annotations

import resource
from contextlib import suppress

_ENOUGH = 1 << 16


def allow_many_files() -> None:
    """As many as the system lets a user have; the usual limit is for programs with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the system says less than it allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
