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
    """At least one thousandth, for measurements on a real machine, where copies and CPU share
    memory: 0 is noise there. A planner that believes 0 moves whatever it can, and does not learn
    what that costs; one that believes a thousandth does."""
    return max(slowed, 1)
