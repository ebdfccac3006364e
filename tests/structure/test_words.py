"""Do docstrings, comments and documents name what acts: a thread, a request, a device, a user?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNNAMED = re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.IGNORECASE)
KINDS = ("*.py", "*.cpp", "*.h", "*.cu", "*.md", "*.toml")


@pytest.mark.parametrize("folder", ["src", "native", "benchmarks", "docs", "training"])
def test_no_sentence_has_an_unnamed_person(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for kind in KINDS
        for path in sorted((ROOT / folder).rglob(kind))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNNAMED.search(line)
    ]
    assert not found, "name the thread, request, device or user that is meant"


def test_no_test_is_named_after_an_unnamed_person() -> None:
    names = re.compile(r"def (test_\w*(?:nobody|somebody|whoever|anybody|everybody)\w*)")
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in names.findall(path.read_text())
    ]
    assert not found, "name the thread, request, device or user that is meant"
