"""Does the demo show and write what it says, and leave nothing half-made?"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from command import refused, run

from moesaic.cli import demo
from moesaic.cli.demo_toy import new_toy, put_toy
from moesaic.cli.main import app, main
from moesaic.models import toy as toy_module
from moesaic.policies.systems import SYSTEMS
from moesaic.workloads.source import open_trace

SHORTEST = ("--tokens", 8, "--train-steps", 1)


class Shown(NamedTuple):
    text: str
    out: Path

    def commands(self) -> list[list[str]]:
        lines = (line.strip() for line in self.text.splitlines())
        return [shlex.split(line) for line in lines if line.startswith("moesaic ")]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A whole demo, with a model that has learned next to nothing."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("new") / "my demo" / "out"
    return Shown(run("demo", "--out", out, *SHORTEST).out, out)


def test_it_says_what_the_model_is(shown: Shown) -> None:
    assert "5.3 million weights in 6 layers of 16 experts, 4 of them per token" in shown.text
    assert re.search(r"It is a toy: .* learns a page of \d{3,4} words by heart", shown.text)
    assert "What it says means nothing" in shown.text


def test_its_answer_is_what_its_command_says(shown: Shown) -> None:
    command = next(words for words in shown.commands() if words[1] == "run")
    prompt, again = command[command.index("-p") + 1], run(*command[1:]).out
    assert f"\n{prompt}{again}" in shown.text


def test_it_tells_what_the_answer_cost(shown: Shown) -> None:
    assert re.search(r"^prompt +\d+ tokens, first token after [\d.]+ ms", shown.text, re.M)
    assert re.search(r"^answer +8 tokens, [\d.]+ tokens/s", shown.text, re.M)
    cost = r"^experts +[\d.]+% were found in the accelerator; [\d.]+ MB were moved there"
    assert re.search(cost, shown.text, re.M)


def test_every_system_writes_the_same_text_here_and_is_simulated_twice(shown: Shown) -> None:
    for name in SYSTEMS:
        real, *simulated = re.findall(rf"│ {re.escape(name)} +│ .*", shown.text)
        assert real.split("│")[-2].strip() == "yes"
        assert len(simulated) == 2
    assert "All wrote the same text" in shown.text


def test_it_writes_a_model_its_routing_two_pictures_and_a_trace(shown: Shown) -> None:
    names = {"model", "routing.moet", "compare.png", "timeline.png", "trace.json"}
    assert {path.name for path in shown.out.iterdir()} == names
    assert (shown.out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (shown.out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((shown.out / "trace.json").read_text())["traceEvents"]
    header = open_trace(shown.out / "routing.moet").header
    assert (header.num_layers, header.num_experts, header.top_k) == (6, 16, 4)
    assert not header.synthetic


def test_what_to_try_next_can_be_typed(shown: Shown) -> None:
    """Verbs and options exist; that they work is their own tests' business."""
    following = shown.commands()[1:]
    assert [words[1] for words in following] == [
        "run",
        "chat",
        "bench",
        "plan",
        "profile",
        "compare",
    ]
    for _, verb, *options in following:
        command = app.get_command(app.make_context("moesaic", [verb]), verb)
        assert command is not None
        command.make_context(verb, options)
    assert Path(following[0][2]) == shown.out / "model"


def test_a_second_demo_takes_the_same_model(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shown.out / "model"
    before = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    put_toy(new_toy(1), model)
    assert "an earlier demo taught it" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in model.iterdir()} == before


def test_an_interrupted_one_leaves_no_half_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(toy_module, "learn_by_heart", interrupted)
    monkeypatch.setattr(sys, "argv", ["moesaic", "demo", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--tokens", 0), "tokens is 0"),
        (("--train-steps", -1), "-1 training steps"),
    ],
)
def test_it_refuses_what_cannot_be_before_anything_is_written(
    words: tuple[object, ...],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert complaint in refused(monkeypatch, capsys, "demo", "--out", out, *words)
    assert not out.exists()


def test_it_refuses_a_file_as_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    assert "is a file" in refused(monkeypatch, capsys, "demo", "--out", taken)


def test_it_names_the_packages_it_misses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda package: package != "matplotlib" or None)
    assert "moesaic[plot]" in refused(monkeypatch, capsys, "demo")
