"""Do tables print what they are given, whole, at any width?"""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import pytest
from command import SMALL, run

import moesaic
from moesaic.cli.shared.output import print_table
from moesaic.cli.study.quality import print_quality
from moesaic.cli.study.reproduce import _print_mobile, print_rows
from moesaic.cli.study.reproduce_trimoe import print_rows as print_trimoe
from moesaic.cli.study.reproduction_rows import RULES
from moesaic.reproductions.row import Row

BORDERS = re.compile(r"[\u2500-\u257f]+")
WIDE = 1000
HEADS = {"field", "value", "what", "name", "it", "does", "why", "property"}  # left out of pairs


def test_brackets_are_text_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        "models in [red]", ("name [b]", "path"), [("[bold]x[/bold]", "/m/[v2]"), ("y\\", 1)]
    )
    shown = capsys.readouterr().out
    for text in ("models in [red]", "name [b]", "[bold]x[/bold]", "/m/[v2]", "y\\"):
        assert text in shown


def words(text: str) -> set[str]:
    """Without borders, and without the colons behind names of columns."""
    return {word.rstrip(":") for word in BORDERS.sub(" ", text).split()}


def check_width(text: str, width: int) -> None:
    """Only a word that is longer than the width may reach over it, on a line of its own."""
    for line in text.splitlines():
        assert len(line) <= width or len(line.split()) <= 2, line


def check_whole(wide: str, narrow: str) -> None:
    assert "…" not in narrow
    assert words(narrow) <= words(wide)
    assert words(wide) - words(narrow) <= HEADS


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_table_loses_a_letter(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(width)

    def text() -> str:
        return " ".join("x" * rng.randint(1, 14) for _ in range(rng.choice((0, 1, 1, 2, 9))))

    for _ in range(60):
        columns = [text() or "head" for _ in range(rng.randint(1, 7))]
        rows = [[text() for _ in columns] for _ in range(rng.randint(1, 4))]
        monkeypatch.setenv("COLUMNS", str(width))
        print_table("a title of several words", columns, rows)
        shown = capsys.readouterr().out
        assert "…" not in shown
        check_width(shown, width)
        cells = {word for row in rows for cell in row for word in cell.split()}
        assert cells <= words(shown)


def test_rows_become_blocks_where_columns_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("system", "tok/s", "note")
    rows = [("static-experts+two-speed", 12.3456, None), ("moesaic", 20, "the default here")]
    monkeypatch.setenv("COLUMNS", "30")
    print_table("speeds", columns, rows)
    assert capsys.readouterr().out == (
        "speeds\n\nsystem:\n  static-experts+two-speed\ntok/s: 12.35\n\n"
        "system: moesaic\ntok/s: 20\nnote: the default here\n\n"
    )
    print_table("sizes", ("field", "value"), [("a-field-with-a-long-name", "a-long-value")])
    assert capsys.readouterr().out == "sizes\n\na-field-with-a-long-name:\n  a-long-value\n\n"
    monkeypatch.setenv("COLUMNS", "60")
    print_table("speeds", columns, rows)
    assert "│ moesaic " in capsys.readouterr().out


def test_a_pipe_without_a_width_gets_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table("names", ("a", "b", "c"), [["n" * 40] * 3])
    assert f"│ {'n' * 40} │" in capsys.readouterr().out
    print_table("names", ("a", "b", "c"), [["n" * 70] * 3])
    assert f"\na: {'n' * 70}\n" in capsys.readouterr().out


COMMANDS = (
    ("models",),
    ("models", "olmoe-1b-7b"),
    ("machines",),
    ("machines", "h200-emr16"),
    ("policies",),
    ("compare", "--sweep", "help"),
    ("simulate", *SMALL),
    ("compare", *SMALL, "--jobs", 1, "--schedules", "hybrid", "--caches", "lru,mrs:alpha=0.3"),
    ("plan", "olmoe-1b-7b", "--machine", "h200-emr16"),
    ("dram", "--pattern", "random", "--requests", 200),
    ("trace", "info", "bundled"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(map(str, words)))
def test_commands_print_their_tables_whole(
    command: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[str] = []
    for width in (WIDE, 80, 40):
        monkeypatch.setenv("COLUMNS", str(width))
        tables.append(_tables(run(*command).out))
    for narrow in tables[1:]:
        check_whole(tables[0], narrow)


def _tables(text: str) -> str:
    """Numbers are alike: some are measured anew in each run."""
    return re.sub(r"\d[\d.]*", "0", text)


def test_reports_of_long_runs_are_printed_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for show in (_quality, _hybrimoe, _trimoe, _mobile):
        shown = []
        for width in (WIDE, 80, 40):
            monkeypatch.setenv("COLUMNS", str(width))
            show()
            shown.append(capsys.readouterr().out.partition("--json has every row")[0])
        for narrow, width in zip(shown[1:], (80, 40), strict=True):
            check_whole(shown[0], narrow)
            check_width(narrow, width)


def _quality() -> None:
    match = {"group": "held_out_templates", "asked": 100, "share": 0.7, "low": 0.6, "high": 0.79}
    row = {
        "expert_dtype": "int4", "dense_dtype": "bf16", "kv_dtype": "bf16",
        "expert_bytes": 5_100_000_000, "load_s": 12.345, "mean_kl": 0.0123456,
        "p99_kl": 0.123456, "same_top1": 0.987, "perplexity": None,
        "exact_match": [match, {**match, "group": "held_out_numbers"}],
    }  # fmt: skip
    rows = [row, {**row, "expert_dtype": "int8"}]
    print_quality(
        {"model": "a-model", "tokens": 1024, "text": None, "reference": "bf16", "rows": rows}
    )


def _row(name: str) -> Row:
    return Row(name, "the mean decode speedup", 1.7, 1.234, "times", "synthetic routing", "moesaic")


def _hybrimoe() -> None:
    print_rows([_row(f"speedup@{name}/speedup") for name in ("a6000-xeon5220r-implied", "h200")])
    print_rows([_row(f"fig9/deepseek-v2-lite/0.25/{cache}") for cache in ("lru", "mrs", "belady")])


def _trimoe() -> None:
    systems = ("enhanced-ktransformers", "monde", "trimoe", "tri-balanced")
    print_trimoe(
        [
            _row(f"fig6/qwen3-235b-a22b/chat/512/{system}@{rule}")
            for system in systems
            for rule in RULES
        ]
    )


def _mobile() -> None:
    _print_mobile([_row("table2/deepseek-v2-lite/gpu-only+lru")])


def test_every_table_goes_through_the_one_that_fits_it() -> None:
    """`print_table` alone uses rich's tables, so no command can print one that is cut."""
    source = Path(moesaic.__file__).parent
    users = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "rich.table":
                users.add(path.relative_to(source).as_posix())
    assert users == {"cli/shared/output.py"}
