"""Which cores workers sit on."""

from __future__ import annotations

import os


def worker_cores(threads: int) -> list[int]:
    """For the workers beside a caller, `threads` in all: the last cores this process may use, so
    that the first one is left to the caller; anywhere (-1) once there are more threads than that."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        cores = []
    helpers = max(threads - 1, 0)
    if helpers >= max(len(cores), 1):
        return [-1] * helpers
    return cores[len(cores) - helpers :]
