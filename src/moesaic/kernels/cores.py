"""Cores that worker threads are pinned to."""

from __future__ import annotations

import os


def worker_cores(threads: int) -> list[int]:
    """Cores for the workers besides the caller, `threads` in all; -1: not pinned.

    Not pinned is the default. A pinned worker waits while the caller runs on its core, and the
    caller is not ours to pin: with 16 threads on 16 cores, one token in bf16 read 66 to 72 % of the
    streaming bandwidth with pinned workers and 81 to 85 without, and on two cores starting a job
    took either 1 or 50 us. MOESAIC_PIN=1 pins them, to the last cores."""
    cores, workers = all_cores(), max(threads - 1, 0)
    if os.environ.get("MOESAIC_PIN") != "1" or workers >= len(cores):
        return [-1] * workers
    return cores[len(cores) - workers :]


def all_cores() -> list[int]:
    """Cores that this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return list(range(os.cpu_count() or 1))
