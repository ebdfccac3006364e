"""Does a study on a cluster give the rows that it gives here, in their order, and its errors?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("ray", reason="the ray extra is not installed")

CALL = "from moesaic.cli.main import main; main()"
COMPARE = ("compare", "--model", "olmoe-1b-7b", "--tokens", "8", "--cache-ratios", "0.25,0.5")
SYSTEMS = ("--systems", "moesaic,ktransformers", "--json")
HERE = ("--jobs", "1")
RAY = ("--jobs", "2", "--ray", "local")
SOON_S = 300


def moesaic(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CALL, *words],
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )


def rows(*words: str) -> Any:
    done = moesaic(*words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for row in found:
        for name in ("command", "wall_s"):
            row.pop(name, None)
    return found


def test_a_comparison_has_the_same_rows_as_here() -> None:
    here = rows(*COMPARE, *SYSTEMS, *HERE)
    assert len(here) == 4
    assert rows(*COMPARE, *SYSTEMS, *RAY) == here


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "hybrimoe", "--only", "fig9/deepseek", "--json"),
        ("reproduce", "mobile", "--only", "table4", "--json"),
        ("reproduce", "trimoe", "--only", "fig6", "--json"),
    ],
)
def test_a_reproduction_has_the_same_rows_as_here(words: tuple[str, ...]) -> None:
    assert rows(*words, *RAY) == rows(*words, *HERE)


@pytest.mark.long
def test_an_address_without_a_cluster_is_named() -> None:
    done = moesaic(*COMPARE, *SYSTEMS, "--ray", "127.0.0.1:1")
    assert done.returncode == 2
    assert "--ray '127.0.0.1:1': no cluster could be joined there" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_ctrl_c_ends_it_without_a_trace() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CALL, *COMPARE, "--tokens", "100000", "--ray", "local"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    end = time.monotonic() + SOON_S
    while not _workers(process.pid):
        assert time.monotonic() < end, "no process of the cluster has begun"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=SOON_S)[1]
    assert process.returncode == 130
    assert "Traceback" not in said


def _workers(session: int) -> list[str]:
    """Processes of this session that compute a part."""
    found = subprocess.run(
        ["ps", "-s", str(session), "-o", "args="], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if line.startswith("ray::_run")]
