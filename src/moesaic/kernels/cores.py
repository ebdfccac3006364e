"""Which cores workers sit on."""

from __future__ import annotations

import os


def worker_cores(threads: int) -> list[int]:
    """For the workers beside a caller, `threads` in all: the last cores this process may use, so
    that the first is left to the caller; anywhere (-1) once there are more threads than cores."""
    cores, helpers = all_cores(), max(threads - 1, 0)
    if helpers >= len(cores):
        return [-1] * helpers
    return cores[len(cores) - helpers :]


def all_cores() -> list[int]:
    """That this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return list(range(os.cpu_count() or 1))
