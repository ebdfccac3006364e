"""What every importer returns, and one trace of the documents of several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace, ImpossibleSetting
from moesaic.workloads.routing_arrays import RoutingArrays


@dataclass(frozen=True, slots=True)
class ImportedDocument:
    """Tokens of one text. `phases` is None where the source does not say what they are, `weights`
    where it has none; `positions` rise, with gaps where tokens are unknown."""

    experts: NDArray[Any]  # [tokens, layers, k]
    positions: NDArray[Any]  # [tokens]
    weights: NDArray[Any] | None = None
    phases: NDArray[Any] | None = None
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """`num_experts`, `model` and `origin`: what the file says itself. `notes` are for the user:
    what was left out, and why."""

    documents: list[ImportedDocument]
    notes: list[str] = field(default_factory=list)
    num_experts: int | None = None
    model: str | None = None
    origin: str | None = None
    source: str | None = None


def one_trace(files: Sequence[tuple[object, Imported]], phase: int) -> RoutingArrays:
    """All documents, one after another; `phase` is for those that do not say theirs."""
    every = [(path, each) for path, found in files for each in found.documents]
    first_path, first = every[0]
    for path, each in every:
        if each.experts.shape[1:] != first.experts.shape[1:]:
            layers, k = each.experts.shape[1:]
            expected = "has {} layers and {} experts per token".format(*first.experts.shape[1:])
            raise BadTrace(
                path, "experts", f"{layers} layers and {k} experts per token, but {first_path} "
                f"{expected}: traces of one model belong together",
            )  # fmt: skip
    weighted = {each.weights is not None for _, each in every}
    if len(weighted) > 1:
        raise ImpossibleSetting("some of the files have weights and some have none: import apart")
    lengths = [len(each.experts) for _, each in every]
    return RoutingArrays(
        np.repeat(np.arange(len(every)), lengths),
        np.concatenate([each.positions for _, each in every]),
        np.concatenate([_phases(each, phase) for _, each in every]),
        np.concatenate([each.experts for _, each in every]),
        np.concatenate([each.weights for _, each in every]) if weighted == {True} else None,
    )


def _phases(document: ImportedDocument, phase: int) -> NDArray[Any]:
    return np.full(len(document.experts), phase) if document.phases is None else document.phases
