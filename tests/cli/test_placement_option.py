"""`--placement` on the command line: one run leaves the file, others start from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import refused, run, run_json

from moesaic.core.errors import ImpossibleSetting

EMULATED = ("--accelerator", "emulated", "--cache-ratio", 0.25, "--threads", 1)
RUN = ("run", "-p", "What is 3 + 4?", "--max-tokens", 4, *EMULATED)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("placement") / "uses.json"
    run_json(*RUN, "--placement", path)
    return path


def test_a_run_leaves_a_file_that_the_others_take(left: Path) -> None:
    before = left.read_text()
    assert json.loads(before)["model"] == "moesaic-20m"
    simulated: Any = run_json(
        "simulate", "--model", "moesaic-20m", "--tokens", 8, "--placement", left,
        "--policies", "ktransformers",
    )  # fmt: skip
    assert "--placement" in simulated["command"]
    measured: Any = run_json(
        "bench", "-p", 0, "-n", 4, "--repetitions", 1, *EMULATED, "--placement", left
    )
    assert measured
    assert left.read_text() == before, "only runs add to it"


def test_mistakes_have_one_line(
    left: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = left.with_name("nothing.json")
    for words, why in (
        (("simulate", "--placement", nothing), "there is no such file"),
        (("simulate", "--model", "olmoe-1b-7b", "--placement", left), "it is of moesaic-20m"),
        (("simulate", "--first-token", 5), "begin later"),
    ):
        assert why in refused(monkeypatch, capsys, *words)


def test_a_bench_needs_the_file_before_it_loads(left: Path) -> None:
    nothing = left.with_name("nothing.json")
    with pytest.raises(ImpossibleSetting, match="there is no such file"):
        run("bench", "-p", 0, "-n", 4, *EMULATED, "--placement", nothing)
