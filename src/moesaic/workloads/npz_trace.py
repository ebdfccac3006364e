"""Real routing published as arrays: per-token traces (.npz), and popularity alone.

A per-token file has `experts` [tokens, layers, k] in rank order, `weights_u8` (gate probability
times 255), `doc_start` [documents + 1] and `domain` [documents].
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace
from moesaic.core.parsing import read_json
from moesaic.workloads.block import DECODE, PREFILL, RoutingBlock
from moesaic.workloads.domains import with_domains
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.reader import PathLike

BLOCK_TOKENS = 4096
# What numpy and zipfile raise on damaged or hostile archives, one that is a bare array included.
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class NpzTrace:
    """A real trace in an .npz. The arrays are unpacked once and kept: such files are small."""

    def __init__(
        self, path: PathLike, header: TraceHeader, arrays: dict[str, NDArray[Any]]
    ) -> None:
        self.path = path
        self.header = header
        self._arrays = arrays
        self._phase = PREFILL if header.metadata["phase"] == "prefill" else DECODE

    def blocks(self) -> Iterator[RoutingBlock]:
        starts = self._arrays["doc_start"]
        tokens = int(starts[-1])
        for begin in range(0, tokens, BLOCK_TOKENS):
            index = np.arange(begin, min(begin + BLOCK_TOKENS, tokens))
            document = np.searchsorted(starts, index, side="right") - 1
            yield RoutingBlock(
                document.astype(np.uint32),
                (index - starts[document]).astype(np.uint32),
                np.full(len(index), self._phase, dtype=np.uint8),
                self._arrays["experts"][index],
                (self._arrays["weights_u8"][index] / np.float32(255)).astype(np.float16),
            )


def open_npz(path: PathLike) -> NpzTrace:
    arrays = _load(path)
    experts = arrays["experts"]
    _, layers, top_k = experts.shape
    model, _, phase = Path(path).stem.rpartition("_")
    header = TraceHeader(
        model=model or Path(path).stem,
        num_layers=layers,
        num_experts=_expert_count(int(experts.max()) + 1),
        top_k=top_k,
        ranks=top_k,
        has_weights=True,
        source=f"real routing of {model or Path(path).stem}, from {Path(path).name}",
        metadata={"phase": "prefill" if phase == "prefill" else "decode"},
    )
    header.check(path)
    return NpzTrace(path, with_domains(header, arrays["domain"].astype(str).tolist()), arrays)


def _load(path: PathLike) -> dict[str, NDArray[Any]]:
    wanted = {"experts": 3, "weights_u8": 3, "doc_start": 1, "domain": 1}
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = wanted.keys() - set(archive.files)
            if missing:
                expected = f"is missing; a routing .npz has {', '.join(wanted)}"
                raise BadTrace(path, ", ".join(sorted(missing)), expected)
            arrays = {name: archive[name] for name in wanted}
    except _DAMAGED as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BadTrace(path, "archive", f"cannot be read ({error})") from error
    for name, dimensions in wanted.items():
        if arrays[name].ndim != dimensions:
            raise BadTrace(path, name, f"must have {dimensions} dimensions")
    _check_shapes(arrays, path)
    return arrays


def _check_shapes(arrays: dict[str, NDArray[Any]], path: PathLike) -> None:
    experts, starts = arrays["experts"], arrays["doc_start"]
    if arrays["weights_u8"].shape != experts.shape:
        raise BadTrace(path, "weights_u8", f"must have the shape of experts, {experts.shape}")
    if starts.dtype.kind not in "iu":
        raise BadTrace(path, "doc_start", f"must be whole numbers, not {starts.dtype}")
    for name in ("experts", "weights_u8"):
        if arrays[name].dtype != np.uint8 or not arrays[name].size:
            raise BadTrace(path, name, "must be uint8 and not empty")
    ordered = np.sort(experts, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise BadTrace(path, "experts", "must be different within a layer of a token")
    if (
        not len(starts)
        or starts[0] != 0
        or starts[-1] != len(experts)
        or (starts[1:] <= starts[:-1]).any()
    ):
        raise BadTrace(path, "doc_start", f"must rise from 0 to {len(experts)}")
    if len(arrays["domain"]) != len(starts) - 1:
        raise BadTrace(path, "domain", f"must name {len(starts) - 1} documents")


def _expert_count(seen: int) -> int:
    """Such files do not say how many experts there are: every model so far has a power of two."""
    return 1 << (seen - 1).bit_length()


def load_shares(path: PathLike) -> NDArray[np.float64]:
    """Popularity [layers, experts], rows summing to 1, from per-question shares (.npz with one
    uint8 array [questions, layers, experts] per subject)."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            total = sum(archive[name].sum(axis=0, dtype=np.float64) for name in archive.files)
    except _DAMAGED as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BadTrace(path, "archive", f"cannot be read ({error})") from error
    counts = np.asarray(total)
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
