"""Does docs/trimoe.md show what its committed result says, and does it take a run's rows?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.trimoe_page import PAGE, RESULT, TABLES, main, rendered
from benchmarks.trimoe_results import MISSING, load, of_rows

from benchmarks import trimoe_page
from moesaic.reproductions.trimoe import Reproduction


def test_the_page_is_what_the_committed_result_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    command = "python -m benchmarks.trimoe_page write " + str(RESULT.relative_to(PAGE.parents[1]))
    assert rendered(page, load(RESULT)) == page, command


def test_no_table_lacks_a_row() -> None:
    """But where no expert fits beside the KV cache."""
    results = load(RESULT)
    for mark, part in TABLES.items():
        text = part.table(results)
        assert text.count(MISSING) == (4 if mark == "memory" else 0), mark


def test_tables_are_made_of_rows_that_the_command_has() -> None:
    results = load(RESULT)
    for part in TABLES.values():
        part.table(results)
    known = {wanted.id for wanted in Reproduction()._wanted}
    unknown = {name for name in results.read - known if "real" not in name}
    assert unknown == {f"memory{rest}" for rest in FITS_NOWHERE}


FITS_NOWHERE = [
    f"{layer}/{model}/768/fits"
    for layer in ("", "-layer")
    for model in ("qwen3-235b-a22b", "glm-4.5-air")
]


def test_a_result_has_only_the_rows_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "fig6/least@none", "ours": 1.23674, "paper": 2.12}
    (tmp_path / "rows.json").write_text(json.dumps([row, {**row, "id": "unread/row"}]))
    assert main(["keep", str(tmp_path / "rows.json"), str(tmp_path / "result.json")]) == 0
    assert "rows of the page are missing" in capsys.readouterr().err
    kept = load(tmp_path / "result.json")
    assert dict(kept.values) == {"fig6/least@none": 1.237}
    assert dict(kept.paper) == {"fig6/least@none": 2.12}
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- {m} -->\n\n<!-- end of {m} -->\n" for m in (*TABLES, "run")))
    monkeypatch.setattr(trimoe_page, "PAGE", page)
    assert main(["write", str(tmp_path / "result.json")]) == 0
    assert "| – | – | 1.24 |" in page.read_text()
    assert "`moesaic reproduce trimoe --only headline`" in page.read_text()


def test_a_file_that_is_not_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[1]")
    assert main(["keep", str(wrong), str(tmp_path / "result.json")]) == 2
    assert "is not what `moesaic reproduce trimoe" in capsys.readouterr().err
    assert main(["write", str(wrong)]) == 2
    assert "is not a result of this page" in capsys.readouterr().err


def test_values_keep_four_digits() -> None:
    found = of_rows([{"id": "x", "ours": 0.00251234, "paper": None}], {})
    assert found.text("x", ".5f") == "0.00251"
    assert found.text("y") == MISSING
