"""Are the measured tables of docs/hybrimoe.md and the README those of the committed results?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.measured_placement import RESULTS, rows

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_page_has_every_row_of_the_result(path: Path) -> None:
    page = (ROOT / "docs" / "hybrimoe.md").read_text()
    assert f"results/hybrimoe/{path.name}" in page
    missing = [row for row in rows(json.loads(path.read_text())) if row not in page]
    assert not missing


def test_the_readme_has_the_rows_with_the_longer_profile() -> None:
    """Without the columns that are only on the page: the profile, and HybriMoE over static."""
    readme = (ROOT / "README.md").read_text()
    result = json.loads((RESULTS / "2026-11-19-measured.json").read_text())
    for row in rows(result):
        parts = row.strip("| ").split(" | ")
        if parts[1] == "8,192":
            threads, host = parts[0].split(", ")
            assert f"| {threads} threads, {host} | {' | '.join(parts[2:8])} |" in readme
