"""Is what a process says about its own memory what it takes?"""

from __future__ import annotations

import mmap

import pytest

from moesaic.hardware.procfs import process_memory, reset_peak

SIZE = 64 << 20

pytestmark = pytest.mark.skipif(
    process_memory().peak is None, reason="this system does not say how much memory a process takes"
)


def take_memory() -> mmap.mmap:
    """From the system: what a process has freed before it may keep, and give out again."""
    taken = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, SIZE, mmap.PAGESIZE):
        taken[page] = 1
    return taken


def test_memory_in_use_is_seen_and_the_peak_remembered() -> None:
    before = process_memory()
    assert before.now is not None
    taken = take_memory()
    while_taken = process_memory().now
    assert while_taken is not None
    assert while_taken - before.now > 0.9 * SIZE
    taken.close()
    now, peak = process_memory()
    assert now is not None
    assert peak is not None
    slack = SIZE / 16  # the system counts pages in lots
    assert peak > while_taken - slack
    assert now < while_taken - SIZE + slack


def test_a_forgotten_peak_begins_anew() -> None:
    taken = take_memory()
    before = process_memory().peak
    taken.close()
    reset_peak()
    now, peak = process_memory()
    assert before is not None
    assert now is not None
    assert peak is not None
    assert peak < before
    assert peak - now < SIZE / 4
