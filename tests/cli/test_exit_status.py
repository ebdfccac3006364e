"""Does the exit status say what kind of thing went wrong, and do all errors have one kind?"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from moesaic.cli import command_line
from moesaic.cli.main import main
from moesaic.cli.shared.exit_status import ENGINE, FILE, MODEL, REQUEST, exit_status
from moesaic.core.errors import (
    REPORT,
    BadFile,
    BadTrace,
    BrokenModel,
    BrokenWeights,
    EngineFailed,
    FailedRows,
    ImpossibleRequest,
    ImpossibleSetting,
    ModelFault,
    MoesaicError,
    StuckGrammar,
    UnknownName,
    WorkerEnded,
)

ROOT = Path(__file__).parents[2]
KINDS = (ImpossibleRequest, BadFile, ModelFault, EngineFailed)
# Where errors of their own are defined beside core/errors.py.
MODULES = (
    "kernels.gpu.driver",
    "kernels.gpu.nvrtc",
    "lab.bench.stock_peer",
    "machines.sim.dram.pattern_file",
    "machines.sim.dram.timing_file",
    "hardware.machine_topology",
    "model_info.model_names",
)


def kinds_of_error(kind: type[MoesaicError] = MoesaicError) -> Iterator[type[MoesaicError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds_of_error(each)


def test_every_error_is_of_one_kind() -> None:
    for module in MODULES:
        importlib.import_module(f"moesaic.{module}")
    ours = {each for each in kinds_of_error() if each.__module__.startswith("moesaic.")}
    assert {"CudaFailed", "PeerFailed", "BadPatternFile"} <= {each.__name__ for each in ours}
    for error in ours - {FailedRows}:
        assert sum(issubclass(error, kind) for kind in KINDS) == 1, error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ImpossibleSetting("no"), REQUEST),
        (UnknownName("model", "x", ["y"]), REQUEST),
        (StuckGrammar({0: "no way on"}), REQUEST),
        (WorkerEnded("killed"), REQUEST),
        (click.UsageError("what"), REQUEST),
        (BadTrace("a.moet", "header", "is cut"), FILE),
        (FileNotFoundError(2, "No such file or directory", "x"), FILE),
        (BrokenModel([0], 1), MODEL),
        (BrokenWeights("nan"), MODEL),
        (EngineFailed("a launch failed"), ENGINE),
    ],
)
def test_the_status_follows_from_the_kind(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(**options: object) -> None:
        raise error

    monkeypatch.setattr(command_line.app, "main", fails)
    with pytest.raises(SystemExit) as ended:
        command_line.run(lambda: None)
    assert ended.value.code == exit_status(error) == status
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert (REPORT in said) == (status == ENGINE), "what to report is said where it is wanted"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("simulate", "--machine", "h2000"), REQUEST),
        (("simulate", "--cache-ratio", "2"), REQUEST),
        (("simulate", "--machine", "bad.toml"), FILE),
        (("trace", "info", "bad.moet"), FILE),
        (("trace", "info", "missing.moet"), FILE),
    ],
)
def test_commands_end_with_it(
    words: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.toml").write_text("name = 3")
    (tmp_path / "bad.moet").write_text("no trace")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["moesaic", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status


def test_the_page_has_every_status() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert re.findall(r"^\| (\d+) \|", page, re.M) == ["0", "2", "3", "4", "5", "6", "70", "130"]


# Is output that cannot be written blamed on where it goes?

CALL = "from moesaic.cli.main import main; main()"
FULL = Path("/dev/full")


def call(
    *words: str, stdout: int, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-c", CALL, *words]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("words", "python"), [(("models",), ()), (("models", "--json"), ("-u",)), (("--help",), ())]
)
def test_a_full_device(words: tuple[str, ...], python: tuple[str, ...]) -> None:
    with FULL.open("wb") as stream:
        done = call(*words, stdout=stream.fileno(), python=python)
    assert done.returncode == 4, "as files that cannot be written"
    said = "error: standard output could not be written: No space left on device\n"
    assert done.stderr == said


def test_a_pipe_that_nothing_reads() -> None:
    """As with `| head -1`: the command ends without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = call("models", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
