"""Does a long command leave lines in a log, and a short one none?"""

from __future__ import annotations

import sys

import pytest
from command import SMALL, run

from moesaic.cli.shared import output
from moesaic.cli.shared.output import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only item."""
    now = [0.0]
    monkeypatch.setattr(output, "monotonic", lambda: now[0])
    return now


def lines(clock: list[float], capsys: pytest.CaptureFixture[str], step_s: float) -> list[str]:
    with progress("comparing", 20) as advance:
        for _ in range(20):
            clock[0] += step_s
            advance()
    streams = capsys.readouterr()
    assert streams.out == ""
    return streams.err.splitlines()


def test_a_short_command_says_nothing(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines(clock, capsys, 0.4) == []


def test_a_long_one_says_how_far_it_is(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines(clock, capsys, 4.0) == [
        "comparing: 3 of 20, 12 s",
        "comparing: 6 of 20, 24 s",
        "comparing: 9 of 20, 36 s",
        "comparing: 12 of 20, 48 s",
        "comparing: 15 of 20, 60 s",
        "comparing: 18 of 20, 72 s",
    ]


def test_an_hour_leaves_some_fifty_lines(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("simulating", None) as advance:
        for _ in range(3_600):
            clock[0] += 1.0
            advance()
    assert 20 < capsys.readouterr().err.count("\n") < 60


def test_quiet_is_quiet(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress("describing", 3, quiet=True) as advance:
        clock[0] += 100.0
        advance()
    assert capsys.readouterr().err == ""


def test_a_verb_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a minute later."""
    minutes = iter(range(0, 60 * sys.maxsize, 60))
    monkeypatch.setattr(output, "monotonic", lambda: float(next(minutes)))
    said = run("simulate", *SMALL).err.splitlines()
    assert "simulating: 10 of 10, 600 s" in said
    assert "simulating: 1 of 10, 60 s" in said


def test_a_unit_gives_a_rate_and_the_time_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what was done since it began."""
    with progress("answering", 10_000, unit="requests", done=4000) as advance:
        for step_s in (20, 10_000):
            clock[0] += step_s
            advance(40)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "answering: 4040 of 10000, 20 s, 2 requests/s, 50 min left"
    assert second.endswith("0.00798 requests/s, 205 h 58 min left")
