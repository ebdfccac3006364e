"""Which module of the package names which in its imports, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from sources import Source, sources

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
