"""Time is integer nanoseconds everywhere: virtual clocks, cost tables, plans and reports."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

GB = 1_000_000_000


def ns_from_us(microseconds: float) -> int:
    return round(microseconds * NS_PER_US)


def slowed_by(alone: float, beside: float) -> int:
    """Thousandths that work takes longer beside a copy than alone; a measurement that says the
    copy helps is noise."""
    return max(round((beside - alone) * 1000 / max(alone, 1)), 0)


def nonzero_slowdown(slowed: int) -> int:
    """Of a measurement on a real machine, where copies and CPU share memory: that it found nothing
    is noise, too. A planner that is told so moves whatever it can, and does not learn what that
    costs; told of a thousandth, it does."""
    return max(slowed, 1)
