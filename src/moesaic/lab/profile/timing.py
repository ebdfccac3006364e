"""Timing things several times, and keeping the figure that other programs disturb least: the
shortest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from moesaic.machines.real.lane import Job, Lane


def min_ns(work: Callable[[int], None], times: int = 7) -> int:
    """The shortest of `times` calls of `work(attempt)`, after one that does not count."""
    taken = []
    for attempt in range(times + 1):
        started = perf_counter_ns()
        work(attempt)
        taken.append(perf_counter_ns() - started)
    return min(taken[1:])


def on_lane(lane: Lane, make: Callable[[int], Job]) -> Callable[[int], None]:
    """The attempt's job, handed to a lane and waited for."""

    def work(attempt: int) -> None:
        lane.submit(make(attempt))
        lane.join()

    return work


def line_through(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Offset (not below 0) and slope of the straight line through the first and the last point."""
    (x0, y0), (x1, y1) = points[0], points[-1]
    slope = (y1 - y0) / (x1 - x0)
    if slope <= 0:  # noise: all of it is slope
        return 0.0, y1 / x1
    offset = y0 - slope * x0
    return (offset, slope) if offset >= 0 else (0.0, y1 / x1)
