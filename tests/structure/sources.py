"""The package's own source, parsed: what the structure tests look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import moesaic

ROOT = Path(moesaic.__file__).parent
# Layers that compute with tensors; no other may import torch, directly or through these.
NEEDS_TORCH = frozenset(
    {
        "kernels",
        "models",
        "machines.real",
        "machines.layerwise",
        "machines.cpu_step",
        "machines.captured",
        "engine",
        "serve",
        "lab.against",
        "lab.bench",
        "lab.fidelity",
        "lab.gating",
        "lab.profile",
        "lab.quality",
        "lab.evaluation",
        "lab.replayed_run",
    }
)
# But these: the command line reads settings and plans memory without it.
TORCH_FREE = frozenset(
    {
        "engine.described_belief",
        "engine.engine_settings",
        "engine.memory",
        "lab.gating.tally",
        "lab.gating.rules",
    }
)


@dataclass(frozen=True)
class Source:
    path: Path  # from the package's folder
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        parts = self.path.with_suffix("").parts
        return ".".join(("moesaic", *(parts[:-1] if parts[-1] == "__init__" else parts)))

    @property
    def needs_torch(self) -> bool:
        inside = self.module.removeprefix("moesaic.")

        def stands_in(layers: frozenset[str]) -> bool:
            return any(inside == layer or inside.startswith(f"{layer}.") for layer in layers)

        return stands_in(NEEDS_TORCH) and not stands_in(TORCH_FREE) and inside != "engine"

    def imports(self) -> Iterator[str]:
        """Every module named in an import, wherever it stands: in functions and under
        TYPE_CHECKING too. `from a import b` names a.b, which may be a module."""
        package = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join((*parents, base)).rstrip(".")
                yield from (f"{base}.{name.name}" for name in node.names)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Source(path.relative_to(ROOT), text, ast.parse(text)))
    return tuple(found)
