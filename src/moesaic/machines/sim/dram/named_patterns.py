"""Patterns by name: how many requests, which ranks, which seed; and what each is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.machines.sim.dram.bank_state import Ints
from moesaic.machines.sim.dram.pattern import Pattern, pattern
from moesaic.machines.sim.dram.timing import Geometry

Parts = dict[str, Any]  # of an address, as arrays


class NamedPattern(NamedTuple):
    summary: str
    make: Callable[[Geometry, Ints, np.random.Generator], Parts]


def _stream(g: Geometry, i: Ints, _: np.random.Generator) -> Parts:
    """Bank groups fastest, so that no two neighbours share one; then columns, banks, rows."""
    column = i // g.bank_groups
    bank = column // g.columns
    parts = {"bg": i % g.bank_groups, "col": column % g.columns, "bank": bank % g.banks}
    return parts | {"row": bank // g.banks % g.rows}


def _stream_ranks(g: Geometry, i: Ints, rng: np.random.Generator) -> Parts:
    return {"rank": i % g.ranks} | _stream(g, i // g.ranks, rng)


def _stream_rank_rows(g: Geometry, i: Ints, rng: np.random.Generator) -> Parts:
    """One row of every bank group of a rank, then the next rank's."""
    block = g.bank_groups * g.columns
    whole, rest = i // block, i % block
    return {"rank": whole % g.ranks} | _stream(g, whole // g.ranks * block + rest, rng)


def _same_bank_group(g: Geometry, i: Ints, _: np.random.Generator) -> Parts:
    column = i // g.banks
    row = column // g.columns % g.rows
    return {"bank": i % g.banks, "col": column % g.columns, "row": row}


def _single_bank(g: Geometry, i: Ints, _: np.random.Generator) -> Parts:
    return {"col": i % g.columns, "row": i // g.columns % g.rows}


def _row_conflict(g: Geometry, i: Ints, _: np.random.Generator) -> Parts:
    return {"row": i % g.rows}


def _random(g: Geometry, i: Ints, rng: np.random.Generator) -> Parts:
    counts = {"bg": g.bank_groups, "bank": g.banks, "row": g.rows, "col": g.columns}
    return {name: rng.integers(count, size=len(i)) for name, count in counts.items()}


def _random_ranks(g: Geometry, i: Ints, rng: np.random.Generator) -> Parts:
    return {"rank": rng.integers(g.ranks, size=len(i))} | _random(g, i, rng)


PATTERNS = {
    "stream": NamedPattern("sequential in one rank, bank groups interleaved", _stream),
    "stream-ranks": NamedPattern("stream that changes the rank with every request", _stream_ranks),
    "stream-rank-rows": NamedPattern("stream that changes the rank after rows", _stream_rank_rows),
    "same-bank-group": NamedPattern("sequential in one bank group", _same_bank_group),
    "single-bank": NamedPattern("sequential in one bank", _single_bank),
    "row-conflict": NamedPattern("another row of one bank with every request", _row_conflict),
    "random": NamedPattern("anywhere in one rank", _random),
    "random-ranks": NamedPattern("anywhere in all ranks", _random_ranks),
}


def named_pattern(
    name: str, geometry: Geometry, requests: int, *, seed: int = 0, write_share: float = 0.0
) -> Pattern:
    """A pattern by name. `write_share` of its requests, drawn by `seed`, write."""
    if name not in PATTERNS:
        raise UnknownName("pattern", name, PATTERNS)
    if requests < 1:
        raise ImpossibleSetting(f"{requests} requests: expected 1 or more")
    if not 0 <= write_share <= 1:
        raise ImpossibleSetting(f"a share of {write_share:g} writes: expected 0 to 1")
    rng = np.random.default_rng(seed)
    parts = PATTERNS[name].make(geometry, np.arange(requests, dtype=np.int64), rng)
    write = rng.random(requests) < write_share if write_share else np.zeros(requests, np.int64)
    return pattern(geometry, write=write, **parts)
