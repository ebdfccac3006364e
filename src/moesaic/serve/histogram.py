"""A histogram in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate


class Histogram:
    def __init__(self, name: str, what: str, bounds: Sequence[float]) -> None:
        """`bounds`: the upper ends of the buckets, rising; one without an end follows."""
        self.name, self._what, self._bounds = name, what, tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def mean(self) -> float | None:
        count = sum(self._counts)
        return self._sum / count if count else None

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self._what}"
        yield f"# TYPE {self.name} histogram"
        bounds = (*(f"{bound:g}" for bound in self._bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield f'{self.name}_bucket{{le="{bound}"}} {count}'
        yield f"{self.name}_sum {self._sum:.9g}"
        yield f"{self.name}_count {sum(self._counts)}"
