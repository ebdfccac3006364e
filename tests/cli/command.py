"""The command line as a test calls it: in this process, with the streams apart."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from moesaic.cli.command_line import app
from moesaic.cli.main import main
from moesaic.cli.shared.exit_status import FILE, REQUEST

SMALL = ("--tokens", "8", "--warmup", "2")


class Streams(NamedTuple):
    out: str
    err: str


def run(*words: object) -> Streams:
    """A command that must succeed. Whatever it prints, nothing is cut to fit a width."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    return Streams(result.stdout, result.stderr)


def run_json(*words: object) -> Any:
    """Standard output must be one JSON value and nothing else."""
    return json.loads(run(*words, "--json").out)


def only_answer(*words: object) -> Any:
    """The one answer of `moesaic run --json`."""
    (answer,) = run_json("run", *words)["answers"]
    return answer


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> str:
    """A command that must be refused as a user meets it: one line, no traceback, the status of a
    request that is impossible or of a bad file (test_exit_status.py has which is which)."""
    monkeypatch.setattr(sys, "argv", ["moesaic", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    streams = capsys.readouterr()
    assert caught.value.code in (REQUEST, FILE)
    assert streams.out == ""
    assert streams.err.startswith("error: ")
    assert streams.err.count("\n") == 1
    return streams.err
