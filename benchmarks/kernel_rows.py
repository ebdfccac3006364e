"""From rounds to a row of the kernel benchmark's table: times, rates, and ratios within rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.kernel_rounds import Round, Turn, Who


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    best: float


@dataclass(frozen=True, slots=True)
class Work:
    """One call's."""

    bytes: int  # of weights
    flops: int


@dataclass(frozen=True, slots=True)
class RowKey:
    """Identifies a row."""

    model: str
    tokens: str  # as in a case
    experts: int
    by: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Row:
    key: RowKey
    rounds: int
    ms: Spread
    gb_s: Spread
    of_stream: Spread  # shares of what the machine could do in the same round
    tflops: Spread
    of_peak: Spread | None
    error: float  # of the result, relative to PyTorch's
    times_faster: dict[str, Spread]  # than others of the same round, by a name for them


def spread(values: Sequence[float], best: Callable[[Sequence[float]], float] = max) -> Spread:
    return Spread(median(values), best(values))


def others_for(who: Who) -> dict[str, Who]:
    """Contenders to compare with: the same precision of others, PyTorch's bf16, its own bf16."""
    by, dtype = who
    others = {
        "pytorch": ("pytorch", "bf16"),
        "kt-kernel": ("kt-kernel", dtype),
        "bf16": (by, "bf16"),
    }
    return {name: other for name, other in others.items() if other != who}


def make_row(key: RowKey, rounds: Sequence[Round], work: Work, error: float) -> Row:
    """One contender's results, relative to the roofline and the others of the same rounds."""
    who = key.by, key.dtype
    turns = [turns[who] for turns in rounds]
    return Row(
        key,
        rounds=len(rounds),
        ms=spread([1e3 * turn.seconds for turn in turns], min),
        gb_s=spread([work.bytes / turn.seconds / 1e9 for turn in turns]),
        of_stream=spread([of_stream(turn, work) for turn in turns]),
        tflops=spread([work.flops / turn.seconds / 1e12 for turn in turns]),
        of_peak=of_peak(turns, work),
        error=error,
        times_faster={
            name: spread([turns[other].seconds / turns[who].seconds for turns in rounds])
            for name, other in others_for(who).items()
            if other in rounds[0]
        },
    )


def of_stream(turn: Turn, work: Work) -> float:
    return work.bytes / turn.seconds / 1e9 / turn.ceiling.stream_gb_s


def of_peak(turns: Sequence[Turn], work: Work) -> Spread | None:
    """None where the machine has no matrix tiles."""
    shares = [
        work.flops / turn.seconds / 1e12 / turn.ceiling.peak_tflops
        for turn in turns
        if turn.ceiling.peak_tflops is not None
    ]
    return spread(shares) if shares else None
