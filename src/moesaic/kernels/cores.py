"""Which cores workers sit on."""

from __future__ import annotations

import os


def worker_cores(threads: int) -> list[int]:
    """For the workers beside a caller, `threads` in all; -1 is wherever the system likes.

    That is the default. A worker bound to one core waits when the caller happens to sit on it, and
    the caller is not ours to bind: with 16 threads on 16 cores, one token in bf16 read 66 to 72 %
    of the streaming bandwidth with bound workers and 81 to 85 without, and on two cores starting
    a job took either 1 or 50 us. MOESAIC_PIN=1 binds them, to the last cores."""
    cores, helpers = all_cores(), max(threads - 1, 0)
    if os.environ.get("MOESAIC_PIN") != "1" or helpers >= len(cores):
        return [-1] * helpers
    return cores[len(cores) - helpers :]


def all_cores() -> list[int]:
    """That this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return list(range(os.cpu_count() or 1))
