"""Does the brain decide here what it decided on a GPU? Every layer of captured decode steps that
an H200 ran (`tests/cuda/record_conducted_run.py`), plan for plan and move for move."""

from __future__ import annotations

from pathlib import Path

import pytest

from conducted_run import assert_decided_again, load
from moesaic.policies.shape import Shape

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_what_a_gpu_decided_is_decided_again(path: Path) -> None:
    run = load(path)
    assert "H200" in run.machine
    assert_decided_again(run.brain(), run.routings, run.decisions, Shape(*run.shape), run.slots)
    assert any(decision["plan"][2] for decision in run.decisions), "some experts were brought"


def test_there_are_recordings() -> None:
    assert {path.name.split("_")[-1] for path in RECORDED} >= {"best-split.json.gz"}
