"""Routing as CSV with a header line: a row per expert, or a row per token and layer.

    token,layer,expert[,weight][,document][,phase]      k rows per token and layer, best first
    token,layer,expert_0,...,expert_k-1[,weight_0,...]  one row per token and layer

Rows may come in any order. Layers are numbered as the model numbers them: those without routed
experts are missing, and the others are counted from 0 in the trace."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace
from moesaic.workloads.block import PHASES
from moesaic.workloads.importing.document import Imported, ImportedDocument

_LIMIT = 1 << 31
_MANY = re.compile(r"(expert|weight)_?(\d+)")
_KNOWN = ("token", "layer", "document", "phase", "expert", "weight")


class _Columns(NamedTuple):
    """The number of each column; None: there is none."""

    token: int
    layer: int
    experts: list[int]
    weights: list[int]
    document: int | None
    phase: int | None


def from_csv(path: Path) -> Imported:
    rows = list(_rows(path))
    if not rows:
        raise BadTrace(path, "line 2", "is missing: there is a header line and no row of routing")
    table = np.array([row[:4] for row in rows])  # document, token, layer, line
    experts = np.array([row[4] for row in rows])
    weights = np.array([row[5] for row in rows]) if rows[0][5] is not None else None
    order = np.lexsort((table[:, 3], table[:, 2], table[:, 1], table[:, 0]))
    table, experts = table[order], experts[order]
    shape = _shape(path, table)
    phases = [rows[index][6] for index in order]
    documents, tokens = table[:: shape[1] * shape[2], :2].T
    by_token = phases[:: shape[1] * shape[2]]
    return Imported(
        _documents(
            documents,
            tokens,
            experts.reshape(shape),
            None if weights is None else weights[order].reshape(shape),
            None if by_token[0] is None else np.array(by_token),
        )
    )


def _documents(
    documents: NDArray[Any],
    tokens: NDArray[Any],
    experts: NDArray[Any],
    weights: NDArray[Any] | None,
    phases: NDArray[Any] | None,
) -> list[ImportedDocument]:
    return [
        ImportedDocument(
            experts[documents == number],
            tokens[documents == number],
            None if weights is None else weights[documents == number],
            None if phases is None else phases[documents == number],
        )
        for number in np.unique(documents)
    ]


def _shape(path: Path, table: NDArray[Any]) -> tuple[int, int, int]:
    """Tokens, layers and experts per token, where every token has all layers and as many experts
    in each. The rows are in order."""
    keys, lines = table[:, :3], table[:, 3]
    begins = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    sizes = np.diff(np.r_[begins, len(keys)])
    top_k, layers = int(sizes[0]), np.unique(keys[:, 2])
    ragged = np.flatnonzero(sizes != top_k)
    if ragged.size:
        at = begins[ragged[0]]
        raise BadTrace(
            path, f"line {lines[at]}",
            f"token {keys[at, 1]} has {sizes[ragged[0]]} experts in layer {keys[at, 2]}, the first "
            f"token {top_k}: every token must have as many in every layer",
        )  # fmt: skip
    found = keys[begins, 2]
    wrong = np.flatnonzero(found != layers[np.arange(len(found)) % len(layers)])
    complete = len(found) % len(layers) == 0
    if wrong.size or not complete:
        at = begins[wrong[0] if wrong.size else -1]
        raise BadTrace(
            path, f"line {lines[at]}",
            f"token {keys[at, 1]} or the one before it lacks some of the layers "
            f"{', '.join(map(str, layers[:8]))}{', ...' if len(layers) > 8 else ''}: every token "
            "must have all",
        )  # fmt: skip
    return len(found) // len(layers), len(layers), top_k


_Row = tuple[int, int, int, int, int, float | None, int | None]


def _rows(path: Path) -> Iterator[_Row]:
    """Document, token, layer, line, expert, weight and phase, one for each expert."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        reader = csv.reader(stream)
        names = [name.strip().lower() for name in next(reader, [])]
        columns = _columns(path, names)
        for row in reader:
            if row:
                yield from _experts(path, reader.line_num, row, names, columns)


def _experts(
    path: Path, line: int, row: Sequence[str], names: Sequence[str], at: _Columns
) -> Iterator[_Row]:
    if len(row) != len(names):
        raise BadTrace(path, f"line {line}", f"has {len(row)} columns, the header {len(names)}")

    def number(column: int, read: Callable[[str], Any] = int, what: str = "a whole number") -> Any:
        try:
            value = read(row[column])
        except ValueError:
            value = -1
        if not 0 <= value < _LIMIT:
            said = f"{names[column]} is {row[column]!r}; it must be {what} from 0 on"
            raise BadTrace(path, f"line {line}", said)
        return value

    document = 0 if at.document is None else number(at.document)
    token, layer = number(at.token), number(at.layer)
    phase = None if at.phase is None else _phase(path, line, row[at.phase])
    for rank, column in enumerate(at.experts):
        weight = number(at.weights[rank], float, "a number") if at.weights else None
        yield document, token, layer, line, number(column), weight, phase


def _phase(path: Path, line: int, word: str) -> int:
    if word.strip().lower() not in PHASES:
        raise BadTrace(path, f"line {line}", f"phase is {word!r}; it must be {' or '.join(PHASES)}")
    return PHASES.index(word.strip().lower())


def _columns(path: Path, names: Sequence[str]) -> _Columns:
    many = {name: _MANY.fullmatch(name) for name in names}
    unknown = [name for name in names if name not in _KNOWN and many[name] is None]
    if unknown or len(set(names)) != len(names):
        problem = f"unknown column {unknown[0]!r}" if unknown else "a column stands there twice"
        raise BadTrace(path, "line 1", f"{problem}; {_LAYOUTS}")
    experts, weights = (
        [names.index(one)] if one in names else _numbered(many, names, one)
        for one in ("expert", "weight")
    )
    if "token" not in names or "layer" not in names or not experts:
        raise BadTrace(path, "line 1", f"token, layer or expert is missing; {_LAYOUTS}")
    if weights and len(weights) != len(experts):
        raise BadTrace(path, "line 1", f"{len(weights)} weights for {len(experts)} experts")
    optional = [names.index(one) if one in names else None for one in ("document", "phase")]
    return _Columns(names.index("token"), names.index("layer"), experts, weights, *optional)


def _numbered(many: Any, names: Sequence[str], one: str) -> list[int]:
    found = [(int(m[2]), names.index(name)) for name, m in many.items() if m and m[1] == one]
    return [column for _, column in sorted(found)]


_LAYOUTS = (
    "columns are token,layer,expert[,weight][,document][,phase] with a row per expert, or "
    "token,layer,expert_0,expert_1,...[,weight_0,...] with a row per token and layer"
)
