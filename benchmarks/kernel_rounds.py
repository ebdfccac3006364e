"""How the kernel benchmark measures: in rounds, every contender once per round.

A shared machine may be three times slower for seconds at a time. What is compared is therefore
measured side by side: this machine's roofline before and after every turn, by the same workers
that compute experts, and all contenders one after the other. Ratios are taken within a round, and
the median of the rounds counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from benchmarks.kernel_cases import Case
from benchmarks.kernel_contenders import Call, Contender, Native
from moesaic.kernels import _native
from moesaic.lab.bench.rates import processor_peak, usable_units

TURN_S = 0.02  # calls are repeated until a turn takes about this long
MOST_CALLS = 16
STREAM_BYTES_PER_THREAD = 128 << 20
READING_TURNS = 8
PEAK_ITEMS_PER_THREAD = 300


@dataclass(frozen=True, slots=True)
class Roofline:
    stream_gb_s: float
    peak_tflops: float | None  # of the fastest unit for bf16; None: not measured


@dataclass(frozen=True, slots=True)
class Turn:
    seconds: float  # one call
    ceiling: Roofline


Who = tuple[str, str]  # a contender: whose kernels, which precision
Round = dict[Who, Turn]


@dataclass(frozen=True, slots=True)
class Effort:
    seconds: float  # for a case, unless it needs longer for `min_rounds`
    min_rounds: int
    max_rounds: int


class RooflineProbe:
    """Streaming bandwidth and arithmetic peak of one pool, on the store it computes from."""

    def __init__(self, native: Native, threads: int) -> None:
        self._pool = native.executor.pool
        self._store = native.store
        self._bytes = min(STREAM_BYTES_PER_THREAD * threads, self._store.bytes // 3)
        self._items = PEAK_ITEMS_PER_THREAD * threads
        self._at = 0
        units = usable_units(_native.peaks(), "bf16", "bf16")
        best = processor_peak(_native, units, threads)[1].removesuffix(" peak")
        self._unit, self._item_ops = best, units[best]
        self._multi_stream = self._multi_stream_is_faster()

    def _multi_stream_is_faster(self) -> bool:
        """Whether four read streams per worker are faster than one here: measured in turns."""
        self._read(False)  # wakes sleeping workers
        turns = [(self._read(False), self._read(True)) for _ in range(READING_TURNS)]
        return median(several - one for one, several in turns) < 0

    def _read(self, multi_stream: bool) -> float:
        self._at += self._bytes
        if self._at + self._bytes > self._store.bytes:
            self._at = 0
        address = self._store.block(0, 0).data_ptr() + self._at
        return self._pool.stream_seconds(address, self._bytes, multi_stream)

    def measure(self) -> Roofline:
        stream = self._bytes / self._read(self._multi_stream) / 1e9
        seconds = self._pool.peak_seconds(self._unit, self._items)
        return Roofline(stream, self._items * self._item_ops / seconds / 1e12)


def median_roofline(rounds: Sequence[Round]) -> Roofline:
    """Of all turns, for a contender that another process measures."""
    seen = [turn.ceiling for turns in rounds for turn in turns.values()]
    peaks = [one.peak_tflops for one in seen if one.peak_tflops is not None]
    return Roofline(median(one.stream_gb_s for one in seen), median(peaks) if peaks else None)


def between(before: Roofline, after: Roofline) -> Roofline:
    """As if both measurements had been one."""
    stream = 2 / (1 / before.stream_gb_s + 1 / after.stream_gb_s)
    if before.peak_tflops is None or after.peak_tflops is None:
        return Roofline(stream, None)
    return Roofline(stream, 2 / (1 / before.peak_tflops + 1 / after.peak_tflops))


def measure(
    case: Case, contenders: list[Contender], ceilings: RooflineProbe, effort: Effort
) -> list[Round]:
    calls = {(one.by, one.dtype): calls_for(one, case) for one in contenders}
    rounds: list[Round] = []
    end = time.perf_counter() + effort.seconds
    while len(rounds) < effort.min_rounds or (
        len(rounds) < effort.max_rounds and time.perf_counter() < end
    ):
        turns: Round = {}
        before = ceilings.measure()
        for one in contenders:
            who = one.by, one.dtype
            seconds = seconds_per_call(one, case, calls[who])
            time.sleep(one.settle_s)
            after = ceilings.measure()
            turns[who] = Turn(seconds, between(before, after))
            before = after
        rounds.append(turns)
    return rounds


def calls_for(one: Contender, case: Case) -> int:
    """After a first call, which may compile and allocate."""
    timed(one.ready(case))
    seconds = timed(one.ready(case))
    time.sleep(one.settle_s)
    return max(1, min(MOST_CALLS, ceil(TURN_S / seconds)))


def seconds_per_call(one: Contender, case: Case, calls: int) -> float:
    return sum(timed(one.ready(case)) for _ in range(calls)) / calls


def timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
