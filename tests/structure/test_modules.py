"""Is every module small, documented, quiet, and importable without heavy packages?"""

from __future__ import annotations

import ast
import subprocess
import sys

from sources import ROOT, sources

# About 400 lines are a question (is this one idea?), not a reason to split one.
MOST_LINES, MOST_FUNCTION_LINES = 600, 80

_IMPORT_ALL = """
import importlib, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise AssertionError("torch is imported")

sys.meta_path.insert(0, NoTorch())
for name in sys.argv[1:]:
    importlib.import_module(name)
assert "torch" not in sys.modules
"""


def test_every_module_imports_and_only_tensor_layers_need_torch() -> None:
    names = [source.module for source in sources() if not source.needs_torch]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "importing must print nothing"


def test_files_and_functions_stay_readable() -> None:
    long_files = [s.path for s in sources() if s.text.count("\n") > MOST_LINES]
    assert not long_files, f"more than {MOST_LINES} lines: split"
    long_functions = [
        f"{source.path}:{node.name}"
        for source in sources()
        for node in source.functions()
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MOST_FUNCTION_LINES
    ]
    assert not long_functions, f"more than {MOST_FUNCTION_LINES} lines: split"


def test_every_module_says_what_it_is() -> None:
    assert [s.path for s in sources() if not ast.get_docstring(s.tree)] == []


def test_the_library_prints_nothing() -> None:
    """Users are talked to through one console; see cli/shared/output.py."""
    prints = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert prints == []


def test_types_are_shipped() -> None:
    assert (ROOT / "py.typed").is_file()
