"""Does `python -m training.problems` show problems, and mistakes without a traceback?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from training.problems import KINDS, generate
from training.problems.__main__ import main
from training.problems.catalog import templates

PAGE = Path(__file__).parents[2] / "docs" / "problems.md"


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


def test_the_page_shows_what_the_command_gives(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--split", "train", "--seed", "0", "--count", "10"])
    assert capsys.readouterr().out.strip() in PAGE.read_text()


def test_the_page_counts_the_templates() -> None:
    count = Counter(template.kind for template in templates())
    page = PAGE.read_text()
    assert all(f"| `{kind}` | {count[kind]} |" in page for kind in KINDS)
    held_out = sum(template.held_out for template in templates())
    assert f"| `train` | {len(templates()) - held_out} |" in page
    assert f"| `held_out_templates` | {held_out} others |" in page
