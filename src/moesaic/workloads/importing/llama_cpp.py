"""Routing that llama.cpp's example `moe-trace` writes: `layer,expert`, without a header.

A row is one expert of one token; a forward pass (ubatch) writes its layers one after another, in
each the tokens one after another, in each top-k experts, best first. The file does not say what
top-k is. In the last layer llama.cpp computes only tokens whose logits are needed, which is the
last one of a prompt: the others have no routing there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace, ImpossibleSetting
from moesaic.workloads.block import DECODE, PREFILL
from moesaic.workloads.importing.document import Imported, ImportedDocument

_DIGITS = 10  # no layer or expert has a number as long


def from_moe_trace(path: Path, top_k: int | None) -> Imported:
    """One document. Passes of one token are decode steps, all others prompts."""
    if top_k is None:
        raise ImpossibleSetting(
            f"{path.name} has no header line, as llama.cpp's moe-trace writes it, and does not say "
            "how many experts a token uses: give --top-k, or --model with a known model"
        )
    layers, experts = _read(path)
    begins = np.flatnonzero(np.r_[True, layers[1:] != layers[:-1]])  # of runs of one layer
    sizes = np.diff(np.r_[begins, len(layers)])
    odd = np.flatnonzero(sizes % top_k)
    if odd.size:
        at = begins[odd[0]]
        raise BadTrace(
            path, f"line {at + 1}",
            f"{sizes[odd[0]]} rows of layer {layers[at]} are no multiple of top-k {top_k}",
        )  # fmt: skip
    known = np.unique(layers)
    if len(known) == 1:  # the passes cannot be distinguished
        found = experts.reshape(-1, 1, top_k)
        return Imported([ImportedDocument(found, np.arange(len(found)))])
    return _of_passes(path, known, layers, experts, begins, sizes // top_k, top_k)


def _of_passes(
    path: Path,
    known: NDArray[Any],
    layers: NDArray[Any],
    experts: NDArray[Any],
    begins: NDArray[Any],
    tokens: NDArray[Any],
    top_k: int,
) -> Imported:
    """`tokens` are those of each run."""
    kept, positions, phases, position, left_out = [], [], [], 0, 0
    if len(begins) % len(known):
        raise BadTrace(path, f"line {len(layers)}", "the last forward pass lacks some layers")
    for first in range(0, len(begins), len(known)):
        runs = slice(first, first + len(known))
        if (layers[begins[runs]] != known).any():
            raise BadTrace(
                path, f"line {begins[first] + 1}",
                f"a forward pass must have the layers {known[0]} to {known[-1]} one after another, "
                f"all {len(known)} of the file",
            )  # fmt: skip
        count, last = int(tokens[first]), int(tokens[runs][-1])
        if (tokens[runs][:-1] != count).any() or last not in (1, count):
            raise BadTrace(
                path, f"line {begins[first] + 1}",
                f"the layers of a forward pass have {sorted(set(tokens[runs].tolist()))} tokens: "
                "all must have as many, but the last layer may have the last token only",
            )  # fmt: skip
        rows = [
            experts[begin : begin + many * top_k].reshape(many, top_k)[-last:]
            for begin, many in zip(begins[runs], tokens[runs], strict=True)
        ]
        kept.append(np.stack(rows, axis=1))
        positions.append(position + count - last + np.arange(last))
        phases.append(np.full(last, DECODE if count == 1 else PREFILL))
        position, left_out = position + count, left_out + count - last
    notes = [f"{left_out} prompt tokens have no routing in the last layer and are left out"]
    joined = np.concatenate(kept), np.concatenate(positions)
    document = ImportedDocument(*joined, phases=np.concatenate(phases))
    return Imported([document], notes if left_out else [])


def _read(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    rows = []
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        for line, text in enumerate(stream, 1):
            words = text.strip().split(",")
            numbers = all(word.strip().isdecimal() and len(word) < _DIGITS for word in words)
            if len(words) != 2 or not numbers:
                raise BadTrace(path, f"line {line}", f"must be layer,expert, is {text.strip()!r}")
            rows.append((int(words[0]), int(words[1])))
    if not rows:
        raise BadTrace(path, "line 1", "is missing: there is no row of routing")
    found = np.array(rows, dtype=np.int64)
    return found[:, 0], found[:, 1]
