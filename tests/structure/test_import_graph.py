"""Can every module be understood before those that import it? No circle of imports, wherever they
stand: one in a function or under TYPE_CHECKING hides a circle, it does not open it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from sources import Source, sources

# Which module of the package names which in its imports, wherever they stand.

Graph = Mapping[str, frozenset[str]]


@cache
def import_graph() -> Graph:
    return graph_of(sources())


def graph_of(found: Iterable[Source]) -> Graph:
    """Module -> the modules of `found` it imports, in functions and under TYPE_CHECKING too."""
    by_name = {source.module: source for source in found}

    def modules(source: Source) -> frozenset[str]:
        named = (_module(imported, by_name) for imported in source.imports())
        return frozenset(name for name in named if name is not None) - {source.module}

    return {name: modules(source) for name, source in by_name.items()}


def reached(graph: Graph, start: str) -> frozenset[str]:
    """All modules that importing one may lead to, itself included."""
    seen, waiting = {start}, [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting.extend(new)
    return frozenset(seen)


def _module(imported: str, known: Mapping[str, Source]) -> str | None:
    """`a.b.name` is module a.b.name, or a name in module a.b."""
    while imported and imported not in known:
        imported = imported.rpartition(".")[0]
    return imported or None


def circles(graph: Graph) -> Iterator[frozenset[str]]:
    """The largest sets of modules that lead to each other."""
    left = {module: reached(graph, module) for module in graph}
    while left:
        start, there = left.popitem()
        circle = {start, *(module for module in there if start in reached(graph, module))}
        for module in circle - {start}:
            del left[module]
        if len(circle) > 1:
            yield frozenset(circle)


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = [sorted(circle) for circle in circles(import_graph())]
    assert not found, f"move what these share into a module of its own: {found}"


def test_a_hidden_circle_would_be_found() -> None:
    texts = {
        "core/a.py": "from moesaic.core.b import b",
        "core/b.py": "def b():\n    from moesaic.core import c",
        "core/c.py": "if TYPE_CHECKING:\n    from moesaic.core.a import A",
        "core/d.py": "import moesaic.core.a",
    }
    graph = graph_of(Source(Path(path), text, ast.parse(text)) for path, text in texts.items())
    assert list(circles(graph)) == [{f"moesaic.core.{letter}" for letter in "abc"}]


# Is belief derived from a description without the simulator that acts on the same one?

TRUTH = "moesaic.machines"
# Besides the policies, which a rule about layers keeps apart from every machine.
BELIEF = ("moesaic.engine.described_belief", "moesaic.policies.belief", "moesaic.policies.costs")


def test_no_belief_rests_on_a_machine() -> None:
    graph = import_graph()
    for module in BELIEF:
        found = sorted(name for name in reached(graph, module) if name.startswith(TRUTH))
        assert not found, f"{module} leads to {found}: it reads the description alone"


def test_an_import_on_the_way_would_be_found() -> None:
    texts = {
        "engine/a.py": "def f():\n    from moesaic.hardware import b",
        "hardware/b.py": "from moesaic.machines.sim.physics import Physics",
        "machines/sim/physics.py": "",
    }
    graph = graph_of(Source(Path(path), text, ast.parse(text)) for path, text in texts.items())
    assert "moesaic.machines.sim.physics" in reached(graph, "moesaic.engine.a")
