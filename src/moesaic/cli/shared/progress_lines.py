"""Progress where standard error is a file or a pipe: a line now and then instead of a bar, so that
the log of a long command shows that it is alive and how far it is."""

from __future__ import annotations

from time import monotonic

import click

FIRST_S = 10.0  # commands that take less say nothing
SHARE = 0.1  # of the time so far passes between lines: an hour leaves some fifty


class ProgressLines:
    def __init__(self, description: str, total: int | None) -> None:
        self._description, self._total = description, total
        self._done = 0
        self._start = monotonic()
        self._due = self._start + FIRST_S

    def advance(self, count: int = 1) -> None:
        self._done += count
        now = monotonic()
        if now < self._due:
            return
        elapsed = now - self._start
        self._due = now + max(FIRST_S, SHARE * elapsed)
        of = "" if self._total is None else f" of {self._total}"
        click.echo(f"{self._description}: {self._done}{of}, {elapsed:.0f} s", err=True)
