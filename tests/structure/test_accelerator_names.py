"""Is what a machine can do asked of its capabilities, and never of an accelerator's name?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import Source, sources

from moesaic.machines.accelerators import ACCELERATORS

FACTORY = "moesaic.engine.make_machine"  # builds a machine by its accelerator's name
LAYERS = {"CpuLayers", "LaneLayers", "GpuLayers"}


def comparisons(tree: ast.AST) -> Iterator[int]:
    """Lines where an accelerator is compared with a name, or a machine with a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found = "accelerator" in ast.unparse(node) and _has_name(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            found = any(name in ast.unparse(node.args[1]) for name in LAYERS)
        else:
            continue
        if found:
            yield node.lineno


def _has_name(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and n.value in ACCELERATORS for n in ast.walk(node))


def test_only_the_factory_compares_accelerator_names() -> None:
    found = {s.module for s in sources() if list(comparisons(s.tree))}
    assert found == {FACTORY}


@pytest.mark.parametrize(
    "text",
    [
        'settings.accelerator == "none"',
        'row["accelerator"] != "none"',
        'asked.get("accelerator") in (None, "none")',
        "isinstance(machine, LaneLayers)",
    ],
)
def test_a_comparison_would_be_found(text: str) -> None:
    source = Source(Path("lab/a.py"), text, ast.parse(text))
    assert list(comparisons(source.tree)) == [1]
