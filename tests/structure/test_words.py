"""Do source, native code and documents speak of threads, requests and machines instead of "nobody"
and "whoever"?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PERSONS = re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.IGNORECASE)
KINDS = ("*.py", "*.cpp", "*.h", "*.cu", "*.md", "*.toml")


@pytest.mark.parametrize("folder", ["src", "native", "benchmarks", "docs"])
def test_things_are_named(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for kind in KINDS
        for path in sorted((ROOT / folder).rglob(kind))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PERSONS.search(line)
    ]
    assert not found, "name the thread, request, device or user that is meant"
