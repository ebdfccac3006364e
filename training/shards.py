"""Shards made ahead of time by worker processes, taken strictly in order.

The order makes a run repeatable and resumable: a position is a shard number and a row.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from training.packing import Rows, join_rows
from training.problem_rows import ShardMaker


@dataclass(frozen=True, slots=True)
class Position:
    shard: int = 0
    row: int = 0


BEGINNING = Position()


class ShardStream:
    """`workers` processes, or none: then shards are made here, when they are needed."""

    def __init__(self, maker: ShardMaker, workers: int, start: Position = BEGINNING) -> None:
        self._maker, self._row = maker, start.row
        self._shard = self._next = start.shard
        self._waiting: deque[Future[Rows]] = deque()
        self._ahead = 3 * workers
        self._pool = _pool(workers) if workers else None
        self._submit()
        self._rows = self._take()

    @property
    def position(self) -> Position:
        return Position(self._shard, self._row)

    def rows(self, count: int) -> Rows:
        parts: list[Rows] = []
        while count:
            here = self._rows.only(slice(self._row, self._row + count))
            parts.append(here)
            self._row += len(here.tokens)
            count -= len(here.tokens)
            if count:
                self._shard, self._row = self._shard + 1, 0
                self._rows = self._take()
        return join_rows(parts)

    def _take(self) -> Rows:
        if self._pool is None:
            self._next += 1
            return self._maker(self._next - 1)
        rows = self._waiting.popleft().result()
        self._submit()
        return rows

    def _submit(self) -> None:
        while self._pool is not None and len(self._waiting) < self._ahead:
            self._waiting.append(self._pool.submit(self._maker, self._next))
            self._next += 1

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> ShardStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _pool(workers: int) -> ProcessPoolExecutor:
    """Spawned, not forked: the parent has threads and a GPU."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_quiet)


def _quiet() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many workers as cores
    os.nice(5)  # the process that feeds the GPU has priority
