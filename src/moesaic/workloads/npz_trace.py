"""Routing published as arrays: per-token traces (.npz), and popularity alone.

A per-token file has `experts` [tokens, layers, k], best first; everything else has a default
(docs/trace-format.md describes every array)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace
from moesaic.core.parsing import read_json
from moesaic.workloads.block import DECODE, PHASES, RoutingBlock
from moesaic.workloads.domains import with_domains
from moesaic.workloads.header import IMPORTED, ORIGIN, ORIGINS, SYNTHETIC, TraceHeader
from moesaic.workloads.npz_arrays import read_arrays
from moesaic.workloads.reader import PathLike
from moesaic.workloads.routing_arrays import RoutingArrays, check_experts, check_weights

REQUIRED = "experts"
OPTIONAL = (
    "weights", "weights_u8", "doc_start", "domain", "num_experts", "phase", "model", "origin",
    "source",
)  # fmt: skip
_Arrays = dict[str, NDArray[Any]]


class Said(NamedTuple):
    """What a file says itself; None: the header has a default."""

    num_experts: int | None
    model: str | None
    origin: str | None
    source: str | None
    phases: bool  # in an array or in the name of the file


class NpzTrace:
    """A trace in an .npz. The arrays are unpacked once and kept: such files are small."""

    def __init__(self, header: TraceHeader, arrays: RoutingArrays, said: Said) -> None:
        self.header = header
        self.arrays = arrays
        self.said = said

    def blocks(self) -> Iterator[RoutingBlock]:
        return self.arrays.blocks(self.header)


def open_npz(path: PathLike) -> NpzTrace:
    found = read_arrays(path, (REQUIRED, *OPTIONAL))
    if REQUIRED not in found:
        raise BadTrace(
            path,
            REQUIRED,
            f"is missing; a routing .npz has {REQUIRED} [tokens, layers, k], and may have "
            f"{', '.join(OPTIONAL)}",
        )
    experts = found[REQUIRED]
    said = Said(
        _number(path, found, "num_experts"),
        model=_text(path, found, "model"),
        origin=_text(path, found, "origin"),
        source=_text(path, found, "source"),
        phases="phase" in found or _phase_of_name(path) is not None,
    )
    num_experts = check_experts(path, experts, said.num_experts)
    starts = _starts(path, found, len(experts))
    tokens = np.arange(len(experts))
    documents = np.searchsorted(starts, tokens, side="right") - 1
    arrays = RoutingArrays(
        documents,
        tokens - starts[documents],
        _phases(path, found, len(experts)),
        experts,
        _weights(path, found),
    )
    header = _header(path, said, arrays, num_experts)
    header.check(path)
    if "domain" in found:
        header = with_domains(header, _domains(path, found, len(starts) - 1))
    return NpzTrace(header, arrays, said)


def _header(path: PathLike, said: Said, arrays: RoutingArrays, num_experts: int) -> TraceHeader:
    """What the file does not say follows from its name: `MODEL_prefill.npz`."""
    file, named = Path(path).name, Path(path).stem
    if named.rpartition("_")[2] in PHASES:
        named = named.rpartition("_")[0] or named
    model, origin = said.model or named, said.origin or IMPORTED
    if origin not in ORIGINS:
        raise BadTrace(path, "origin", f"must be {' or '.join(ORIGINS)}, is {origin!r}")
    source = said.source or f"{origin} routing of {model}, from {file}"
    phases = {PHASES[phase] for phase in np.unique(arrays.phases)}
    _, layers, top_k = arrays.experts.shape
    return TraceHeader(
        model=model,
        num_layers=layers,
        num_experts=num_experts,
        top_k=top_k,
        ranks=top_k,
        has_weights=arrays.weights is not None,
        source=source,
        synthetic=origin == SYNTHETIC,
        metadata={"phase": " and ".join(sorted(phases, key=PHASES.index)), ORIGIN: origin},
    )


def _weights(path: PathLike, found: _Arrays) -> NDArray[Any] | None:
    if "weights" in found and "weights_u8" in found:
        raise BadTrace(
            path, "weights", "are given twice, also as weights_u8: leave one of them out"
        )
    if "weights" in found:
        check_weights(path, "weights", found["weights"], found[REQUIRED])
        return found["weights"]
    if "weights_u8" not in found:
        return None
    packed = found["weights_u8"]
    if packed.dtype != np.uint8:
        raise BadTrace(path, "weights_u8", "must be uint8: the weight times 255")
    check_weights(path, "weights_u8", packed, found[REQUIRED])
    return np.asarray(packed / np.float32(255))


def _starts(path: PathLike, found: _Arrays, tokens: int) -> NDArray[Any]:
    """The beginnings of documents, and the number of tokens."""
    if "doc_start" not in found:
        return np.array([0, tokens])
    starts = found["doc_start"]
    if starts.ndim != 1 or starts.dtype.kind not in "iu":
        raise BadTrace(path, "doc_start", "must be whole numbers in one dimension")
    if (
        not len(starts)
        or starts[0] != 0
        or starts[-1] != tokens
        or (starts[1:] <= starts[:-1]).any()
    ):
        raise BadTrace(path, "doc_start", f"must rise from 0 to {tokens}, the number of tokens")
    return starts.astype(np.int64)


def _domains(path: PathLike, found: _Arrays, documents: int) -> list[str]:
    if found["domain"].shape != (documents,):
        raise BadTrace(path, "domain", f"must name {documents} documents in one dimension")
    return [str(each) for each in found["domain"].tolist()]


def _phases(path: PathLike, found: _Arrays, tokens: int) -> NDArray[Any]:
    """One word for all tokens, or a number for each; by the file's name where there is neither."""
    given = found.get("phase")
    if given is None:
        named = _phase_of_name(path)
        return np.full(tokens, DECODE if named is None else named)
    if given.dtype.kind == "U" and given.ndim == 0 and str(given) in PHASES:
        return np.full(tokens, PHASES.index(str(given)))
    if given.dtype.kind in "iu" and given.shape == (tokens,) and np.isin(given, (0, 1)).all():
        return given
    raise BadTrace(
        path, "phase", f"must be 'prefill' or 'decode', or {tokens} numbers, 0 for prefill, 1 for "
        "decode",
    )  # fmt: skip


def _phase_of_name(path: PathLike) -> int | None:
    word = Path(path).stem.rpartition("_")[2]
    return PHASES.index(word) if word in PHASES else None


def _number(path: PathLike, found: _Arrays, name: str) -> int | None:
    if name not in found:
        return None
    value = found[name]
    if value.ndim != 0 or value.dtype.kind not in "iu" or value < 1:
        raise BadTrace(path, name, "must be one whole number, 1 or more")
    return int(value)


def _text(path: PathLike, found: _Arrays, name: str) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    if value.ndim != 0 or value.dtype.kind != "U":
        raise BadTrace(path, name, "must be one string")
    return str(value)


def load_shares(path: PathLike) -> NDArray[np.float64]:
    """Popularity [layers, experts], rows summing to 1, from per-question shares (.npz with one
    uint8 array [questions, layers, experts] per subject)."""
    arrays = read_arrays(path).values()
    try:
        counts = np.asarray(sum(each.sum(axis=0, dtype=np.float64) for each in arrays))
    except (TypeError, ValueError) as error:
        raise BadTrace(path, "archive", f"cannot be read ({error})") from error
    if counts.ndim != 2:
        raise BadTrace(path, "shares", "must be [questions, layers, experts] per subject")
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def load_counts(path: PathLike, model: str, domain: str | None = None) -> NDArray[np.float64]:
    """Popularity [layers, experts] of one model, from a JSON of counts
    {model: {"expert_counts": {domain: [layers][experts]}}}; all domains weigh the same."""
    counts = read_json(Path(path), BadTrace)
    try:
        by_domain = counts[model]["expert_counts"]
        chosen = list(by_domain.values()) if domain is None else [by_domain[domain]]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadTrace(path, f"{model} {domain or ''}".strip(), "has no counts here") from error
    try:
        shares = [np.asarray(c, dtype=np.float64) for c in chosen]
    except (ValueError, TypeError):
        shares = []
    if not shares or any(s.ndim != 2 or s.shape != shares[0].shape for s in shares):
        raise BadTrace(path, f"{model} {domain or ''}".strip(), "must be counts [layers][experts]")
    return np.asarray(np.mean([s / s.sum(axis=1, keepdims=True) for s in shares], axis=0))
