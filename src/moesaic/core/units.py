"""Time is integer nanoseconds everywhere: virtual clocks, cost tables, plans and reports."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

GB = 1_000_000_000


def ns_from_us(microseconds: float) -> int:
    return round(microseconds * NS_PER_US)
