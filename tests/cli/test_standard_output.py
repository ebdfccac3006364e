"""Is output that cannot be written blamed on where it goes?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
