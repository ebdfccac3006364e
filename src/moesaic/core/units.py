"""Time is integer nanoseconds everywhere: virtual clocks, cost tables, plans and reports."""

from __future__ import annotations

from typing import NewType

Nanoseconds = NewType("Nanoseconds", int)

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

GB = 1_000_000_000
GIB = 1 << 30


def ns_from_us(microseconds: float) -> int:
    return round(microseconds * NS_PER_US)


def ns_from_s(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def seconds(nanoseconds: float) -> float:
    return nanoseconds / NS_PER_S
