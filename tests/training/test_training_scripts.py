"""Do the scripts work from the shell, and judge as the project asks?"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from small_recipes import RECIPE, SHAPE, prepared, random_network, write_corpus
from training.check import answer_rows, check, load_rows, size_rows
from training.command import run_command
from training.evaluation import Solved, judge
from training.export import export
from training.problems import generate

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["training.prepare", "--corpus", "/nowhere", "--out", "OUT"], "no *.jsonl.xz"),
        (["training.train", "--prepared", "OUT", "--run", "OUT/r"], "prose.train.xz"),
        (["training.export", "OUT", "OUT/m", "--prepared", "OUT"], "train first"),
        (["training.carry", "join", "OUT", "OUT/r"], "split a checkpoint first"),
        (["training.check", "OUT", "--prepared", "OUT"], "config.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_message(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script, *options = (word.replace("OUT", str(tmp_path)) for word in words)
    monkeypatch.setattr(sys, "argv", [script, *options])
    with pytest.raises(SystemExit) as ended:
        run_command(import_module(script).main)
    assert ended.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert said in message


def test_prepare_runs_from_the_shell(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[shape]\nvocabulary = 400\n")
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    options: list[str | Path] = ["--corpus", corpus, "--out", out, "--recipe", tmp_path / "r.toml"]
    subprocess.run([sys.executable, "-m", "training.prepare", *options], cwd=ROOT, check=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "prose.held_out.xz",
        "prose.train.xz",
        "tokenizer.json",
    ]


def test_judging_reads_the_final_answer() -> None:
    problems = list(generate("held_out_numbers", 0, 6))
    answers = [problem.worked for problem in problems]
    assert judge(problems, answers).share == 1.0
    answers[0] = "I do not know."
    answers[1] = "Answer: nothing of the kind"
    found = judge(problems, answers)
    assert (found.right, found.asked) == (4, 6)
    assert [mistake["written"] for mistake in found.mistakes] == answers[:2]


def test_the_checks_of_an_export_are_made(tmp_path: Path) -> None:
    weights = {name: value.detach() for name, value in random_network().named_parameters()}
    export(SHAPE, weights, prepared(), tmp_path / "model")
    rows, details = check(tmp_path / "model", prepared(), problems=2, run=RECIPE.run)
    verdicts = {row.question: row.passed for row in rows}
    assert verdicts["size"]
    assert not verdicts["shape"]  # too small to be the real one
    assert not verdicts["held_out_numbers, chat"]
    assert not verdicts["held_out_templates, plain"]
    assert details["losses"]["prose"] > 0


def test_thresholds_are_the_projects() -> None:
    full = {"held_out_numbers": Solved(80, 100), "held_out_templates": Solved(59, 100)}
    half = {"held_out_numbers": Solved(78, 100), "held_out_templates": Solved(50, 100)}
    assert [row.passed for row in answer_rows(full, half, "chat")] == [True, False, False]
    even, crowded, idle = [0.5, 0.5, 0.4], [0.41, 0.1], [0.3, 0.0]
    assert [row.passed for row in load_rows([[0.3, 0.4]])] == [True, True]
    assert [row.passed for row in load_rows([even, crowded])] == [True, False]
    assert [row.passed for row in load_rows([idle])] == [False, True]


def test_size_counts_every_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(30_000_000))
    (tmp_path / "b").write_bytes(bytes(10_000_001))
    assert not next(iter(size_rows(tmp_path, RECIPE))).passed
