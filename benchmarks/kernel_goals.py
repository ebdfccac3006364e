"""What the native kernels were asked to reach, compared with the rows.

A goal is judged by its worst point's median; the best round is printed with it, since on a shared
machine the median also measures the neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.kernel_rows import Row, Spread

Measure = Callable[[Row], Spread | None]


@dataclass(frozen=True, slots=True)
class Goal:
    asked: str
    least: float
    unit: str  # "%": shares, "x": times faster
    tokens: str | None  # of the rows it is about; None: every row
    dtype: str | None
    measure: Measure
    more: bool = False  # more than `least`, not only as much


@dataclass(frozen=True, slots=True)
class Verdict:
    asked: str
    reached: str
    where: str  # the worst point
    best: str  # round there
    met: bool | None  # None: not measured


@dataclass(frozen=True, slots=True)
class Latency:
    median_us: float
    p99_us: float


def _over(other: str, row: Row) -> Spread | None:
    return row.times_faster.get(other)


def _of_stream(row: Row) -> Spread | None:
    return row.of_stream


def _of_peak(row: Row) -> Spread | None:
    return row.of_peak


_over_bf16 = partial(_over, "bf16")

GOALS = (
    Goal("1 token, bf16: 85 % of streaming", 0.85, "%", "1", "bf16", _of_stream),
    Goal("1 token, int8: 70 % of streaming", 0.70, "%", "1", "int8", _of_stream),
    Goal("1 token, int4: 70 % of streaming", 0.70, "%", "1", "int4", _of_stream),
    Goal("1 token: int4 2.5 times as fast as bf16", 2.5, "x", "1", "int4", _over_bf16),
    Goal("256 tokens, bf16: 60 % of the AMX peak", 0.60, "%", "256", "bf16", _of_peak),
    Goal("256 tokens: int8 faster than bf16", 1.0, "x", "256", "int8", _over_bf16, more=True),
    Goal("ahead of PyTorch everywhere", 1.0, "x", None, None, partial(_over, "pytorch"), more=True),
    Goal("not behind kt-kernel anywhere", 1.0, "x", None, None, partial(_over, "kt-kernel")),
)
LATENCY_US = 5.0


def judge(goal: Goal, rows: Sequence[Row]) -> Verdict:
    """`rows`: of the native kernels."""
    found = [
        (share, row)
        for row in rows
        if goal.tokens in (None, row.key.tokens) and goal.dtype in (None, row.key.dtype)
        if (share := goal.measure(row)) is not None
    ]
    if not found:
        return Verdict(goal.asked, "not measured", "", "", None)
    worst, row = min(found, key=lambda pair: pair[0].median)
    met = worst.median > goal.least if goal.more else worst.median >= goal.least
    where = f"{row.key.model}, {row.key.tokens}, {row.key.dtype}"
    reached, best = _words(worst.median, goal.unit), _words(worst.best, goal.unit)
    return Verdict(goal.asked, reached, where, best, met)


def judge_latency(latency: Latency | None) -> Verdict:
    asked = f"a spinning pool starts within {LATENCY_US:g} us"
    if latency is None:
        return Verdict(asked, "not measured", "", "", None)
    reached = f"{latency.median_us:.2f} us"
    met = latency.median_us < LATENCY_US
    return Verdict(asked, reached, f"p99 {latency.p99_us:.2f} us", "", met)


def _words(value: float, unit: str) -> str:
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.2f} x"
