"""Does a run learn, stop on request, and resume as if it had not stopped?"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import RECIPE, prepared
from training.checkpoint import read_checkpoint
from training.loop import Request, train
from training.losses import Losses
from training.step import Batch, Trainer

from moesaic.core.errors import BadCheckpoint, ImpossibleSetting
from training import carry

torch.set_num_threads(1)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def request(run: Path, **changes: Any) -> Request:
    return replace(Request(RECIPE, prepared(), run, device="cpu"), **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 steps without a break."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(request(run))
    return run


def test_a_run_learns(whole: Path) -> None:
    (step,) = events(whole, "step")
    (evaluation,) = events(whole, "evaluation")
    assert step["text"] < 5.4  # ln 400 is 6.0
    assert evaluation["losses"]["held_out_numbers"] < 5.4
    assert step["balance"] < 2.0


def test_a_complete_run_leaves_a_summary(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["steps"] == 24
    assert summary["tokens"] == 24 * 8 * 128
    assert set(summary["exact_match"]) == {"full", "half", "by_kind", "mistakes"}
    assert len(summary["token_shares"]) == RECIPE.shape.layers
    for layer in summary["token_shares"]:
        assert sum(layer) == pytest.approx(RECIPE.shape.top_k, abs=1e-3)
    assert 1 <= len(summary["continuations"]) <= 10


def test_an_interrupted_run_ends_with_the_same_weights(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice interrupted: by its time, then by a signal in the middle of a step."""
    train(request(tmp_path, minutes=0.001))  # no time for a single step
    assert read_checkpoint(tmp_path).step == 0

    plain_step, taken = Trainer.step, []

    def ninth_is_interrupted(self: Trainer, batch: Batch, factor: float) -> Losses:
        taken.append(factor)
        if len(taken) == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain_step(self, batch, factor)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", ninth_is_interrupted)
        train(request(tmp_path, resume=True))
    stopped = events(tmp_path, "stop")[-1]
    assert (stopped["step"], stopped["complete"]) == (9, False)
    train(request(tmp_path, resume=True))
    there, here = read_checkpoint(whole), read_checkpoint(tmp_path)
    assert here.step == there.step == 24
    assert here.position == there.position
    for name, weight in there.weights.items():
        assert torch.equal(weight, here.weights[name]), name


def test_planned_time_ends_a_run(tmp_path: Path) -> None:
    train(request(tmp_path, planned_minutes=0.01))
    (stopped,) = events(tmp_path, "stop")
    assert stopped["complete"]
    assert stopped["seconds"] >= 0.6
    assert stopped["step"] > 0


def test_a_checkpoint_is_carried_in_parts(whole: Path, tmp_path: Path) -> None:
    parts = carry.split(whole, tmp_path / "parts", part_bytes=20_000)
    assert len(parts) > 2
    assert all(part.stat().st_size <= 20_000 for part in parts)
    carry.join(tmp_path / "parts", tmp_path / "run")
    there, here = read_checkpoint(whole), read_checkpoint(tmp_path / "run")
    assert here.optimisers is None
    assert (here.step, here.position, here.recipe) == (there.step, there.position, there.recipe)
    for name, weight in there.weights.items():
        assert torch.equal(weight.to(torch.bfloat16).float(), here.weights[name]), name
    longer = RECIPE.with_run(steps=26)
    train(request(tmp_path / "run", recipe=longer, resume=True))
    assert read_checkpoint(tmp_path / "run").step == 26


def test_missing_and_damaged_parts_are_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ImpossibleSetting, match="split a checkpoint first"):
        carry.join(tmp_path, tmp_path / "run")
    parts = carry.split(whole, tmp_path, part_bytes=20_000)
    content = parts[1].read_bytes()
    parts[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadCheckpoint, match="damaged"):
        carry.join(tmp_path, tmp_path / "run")
    parts[1].unlink()
    with pytest.raises(ImpossibleSetting, match="does not hold the"):
        carry.join(tmp_path, tmp_path / "run")


def test_a_finished_run_is_not_overwritten_by_mistake(whole: Path) -> None:
    with pytest.raises(ImpossibleSetting, match="go on with --resume"):
        train(request(whole))
    other = replace(RECIPE, shape=replace(RECIPE.shape, layers=3))
    with pytest.raises(ImpossibleSetting, match="another shape"):
        train(request(whole, recipe=other, resume=True))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="train first"):
        read_checkpoint(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        read_checkpoint(tmp_path)
