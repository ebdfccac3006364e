"""Is the problem generator, which is no part of the package, held to the package's rules?"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from sources import ROOT, Source, sources
from test_modules import MOST_FUNCTION_LINES, MOST_LINES

FOLDER = Path(__file__).parents[2] / "training" / "problems"
# It is text in, text out. Answers are judged by the evaluation's own rules.
MAY_IMPORT = ("moesaic.core.", "moesaic.lab.evaluation.", "training.problems.")
OUTSIDE = ("torch", "numpy", "tokenizers", "moesaic", "training")
SOURCES = [
    Source(path.relative_to(FOLDER), text := path.read_text(encoding="utf-8"), ast.parse(text))
    for path in sorted(FOLDER.rglob("*.py"))
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.path))
def test_its_modules_are_small_documented_and_quiet(source: Source) -> None:
    assert ast.get_docstring(source.tree)
    assert source.text.count("\n") <= MOST_LINES
    for node in source.functions():
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        assert lines <= MOST_FUNCTION_LINES, node.name
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.path))
def test_it_knows_nothing_of_models(source: Source) -> None:
    for name in source.imports():
        assert name.split(".")[0] not in OUTSIDE or name.startswith(MAY_IMPORT), name


def test_the_package_does_not_need_it() -> None:
    assert SOURCES
    assert not (ROOT / "problems").exists()
    for source in sources():
        assert not any(name.split(".")[0] == "training" for name in source.imports()), source.path
