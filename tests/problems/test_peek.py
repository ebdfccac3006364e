"""Does `python -m moesaic.problems` show problems, and mistakes without a traceback?"""

from __future__ import annotations

import json

import pytest

from moesaic.problems import generate
from moesaic.problems.__main__ import main


def test_it_shows_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--split", "train", "--count", "3", "--seed", "1"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{p.question}\n{p.worked}\n" in shown for p in generate("train", 1, 3))


def test_it_writes_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "4", "--kinds", "date", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["answer"] for row in rows] == [p.answer for p in generate("train", 0, 4, ["date"])]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--split", "tran"], "train"), (["--kinds", "poem"], "passage"), (["--count", "-1"], "0")],
)
def test_a_mistake_is_one_message(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
