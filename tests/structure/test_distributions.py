"""Do the wheel and the sdist hold what users need, and nothing else of the repository?"""

from __future__ import annotations

import os
import tarfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT as PACKAGE

CHECKOUT = Path(__file__).parents[2]
BUILD = ("LICENSE", "README.md", "native", "pyproject.toml", "src")
NOT_FOR_USERS = (
    "tests",
    "training",
    "benchmarks",
    "docs",
    "examples",
    "native/tests",
    ".ci",
    "Makefile",
)
DATA = {
    ".css",
    ".cu",
    ".h",
    ".html",
    ".js",
    ".json",
    ".jsonl",
    ".jsonl.xz",
    ".md",
    ".moet",
    ".png",
    ".pyi",
    ".safetensors",
    ".svg",
    ".toml",
    ".txt",
}


@cache
def settings() -> dict[str, Any]:
    whole = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    found: dict[str, Any] = whole["tool"]["scikit-build"]
    return found


def files_of(*places: str) -> Iterator[str]:
    for place in places:
        path = CHECKOUT / place
        if path.is_file():
            yield place
        for folder, _, names in os.walk(path):
            if Path(folder).name != "__pycache__":
                yield from ((Path(folder) / n).relative_to(CHECKOUT).as_posix() for n in names)


def wanted() -> set[str]:
    return {f for f in files_of(*BUILD) if not f.startswith("native/tests/")}


def test_the_sdist_is_what_a_build_needs() -> None:
    """As git reads its ignore files, which is how the build reads these lines."""
    pathspec = pytest.importorskip("pathspec", reason="comes with mypy")
    excluded = pathspec.GitIgnoreSpec.from_lines(settings()["sdist"]["exclude"])
    assert not [file for file in wanted() if excluded.match_file(file)]
    assert list(files_of(*NOT_FOR_USERS)), "the comparison would say nothing"
    assert not [file for file in files_of(*NOT_FOR_USERS) if not excluded.match_file(file)]
    assert excluded.match_file("something-new/file.txt")


def test_a_built_sdist_has_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = pytest.importorskip("scikit_build_core.build", reason="needs the build backend")
    monkeypatch.chdir(CHECKOUT)
    with tarfile.open(tmp_path / backend.build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == wanted() | {"PKG-INFO"}


def test_the_wheel_is_the_package() -> None:
    assert settings()["wheel"] == {"packages": [PACKAGE.relative_to(CHECKOUT).as_posix()]}


def test_the_package_has_only_modules_and_data() -> None:
    for file in files_of(PACKAGE.relative_to(CHECKOUT).as_posix()):
        path = Path(file)
        kind = "".join(path.suffixes[-2:]) if path.suffix == ".xz" else path.suffix
        if kind.endswith(".so"):  # built in place, as developers do
            continue
        assert kind == ".py" or kind in DATA or path.name == "py.typed", file


def test_sources_need_no_tests_to_build() -> None:
    """Only the option that the Makefile sets may look into native/tests."""
    script = (CHECKOUT / "native" / "CMakeLists.txt").read_text()
    before, option, after = script.partition("if(MOESAIC_TESTS)")
    assert option
    assert "option(MOESAIC_TESTS" in before
    assert "OFF)" in before.partition("option(MOESAIC_TESTS")[2].splitlines()[0]
    assert "tests/" not in before
    assert "tests/" not in after.partition("endif()")[2]
