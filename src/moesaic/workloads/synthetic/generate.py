"""Synthetic traces: logits from the latent model, ranked, with softmax scores."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from multiprocessing import parent_process
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.model_spec import ModelSpec
from moesaic.workloads.block import PHASES, RoutingBlock
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.synthetic.calibration import Calibration
from moesaic.workloads.synthetic.document_part import (
    DocumentPart,
    parts_of_batch,
    whole_documents,
)
from moesaic.workloads.synthetic.latent import LatentChunk, LatentModel
from moesaic.workloads.synthetic.second_process import make_documents

ALONE_LOGITS = 40_000_000  # a second or two of one core: then a second process is worth its start
COMPILED_FROM = 1 << 18  # logits: fewer are ranked before the compiler is loaded
_LENGTHS = 2  # stream of random numbers, other than those of the latent model


@dataclass(frozen=True, slots=True)
class TraceShape:
    """What a trace needs to know of a model."""

    model: str
    num_layers: int  # MoE layers
    num_experts: int
    top_k: int
    normalized: bool = False  # gate weights are scaled to sum to 1 over the chosen experts

    @staticmethod
    def of(model: ModelSpec) -> TraceShape:
        normalized = model.normalized_topk or model.scoring == "softmax-after-topk"
        return TraceShape(
            model.name, model.num_moe_layers, model.num_experts, model.top_k, normalized
        )


def synthesize(
    calibration: Calibration,
    shape: TraceShape,
    tokens: int,
    *,
    seed: int = 0,
    ranks: int | None = None,
    lengths: Sequence[int] | None = None,
    phase: str | None = None,
    forecast_depth: int = 0,
    forecast_ranks: int | None = None,
    metadata: dict[str, Any] | None = None,
) -> SyntheticTrace:
    """A trace of exactly `tokens` tokens, made while it is read, the same on every pass.

    `ranks` are twice top-k unless given. Documents have the calibration's distribution of
    lengths, or these `lengths`, over and over; the last one is cut. With `forecast_depth` each
    layer also carries forecasts of so many later layers."""
    k, experts = shape.top_k, shape.num_experts
    if tokens < 1:
        raise ImpossibleSetting(f"tokens must be at least 1, is {tokens}")
    header = TraceHeader(
        model=shape.model,
        num_layers=shape.num_layers,
        num_experts=experts,
        top_k=k,
        ranks=min(experts, 2 * k) if ranks is None else ranks,
        forecast_depth=forecast_depth,
        forecast_ranks=0 if not forecast_depth else (forecast_ranks or min(experts, 2 * k)),
        has_weights=shape.normalized,
        has_scores=True,
        source=f"synthetic routing with the calibration {calibration.name!r}, which was fitted "
        f"on {calibration.source}",
        synthetic=True,
        seed=seed,
        metadata={"calibration": asdict(calibration.logits), **(metadata or {})},
    )
    header.check("synthetic trace")
    phase_number = PHASES.index(phase or calibration.phase)

    make = DocumentMaker(calibration, header, seed, phase_number)
    return SyntheticTrace(make, tokens, lengths)


class SyntheticTrace:
    """A trace made while it is read. What is not read is not made."""

    def __init__(self, make: DocumentMaker, tokens: int, lengths: Sequence[int] | None) -> None:
        self.header = make.header
        self._make, self._tokens, self._lengths = make, tokens, lengths

    def blocks(self) -> Iterator[RoutingBlock]:
        return _blocks(self._make, self._documents(), alone=self._lengths is not None)

    def blocks_of_batch(self, batch: int, steps: int, skip_tokens: int) -> Iterator[RoutingBlock]:
        parts = parts_of_batch(self._documents(), batch, steps, skip_tokens)
        return _blocks(self._make, parts, alone=self._lengths is not None)

    def _documents(self) -> Iterator[DocumentPart]:
        # Whole documents, so that a longer trace only continues a shorter one.
        lengths = _lengths(self._make.calibration, self._lengths, self._make.seed)
        return whole_documents(lengths, self._tokens)


@dataclass
class DocumentMaker:
    """Makes any document of one trace; what it needs for that is made on first use, so that it
    is small when it is sent to another process."""

    calibration: Calibration
    header: TraceHeader
    seed: int
    phase: int

    @cached_property
    def _model(self) -> LatentModel:
        header = self.header
        return LatentModel(
            self.calibration.logits, header.num_layers, header.num_experts, self.seed
        )

    def pieces(self, part: DocumentPart) -> Iterator[RoutingBlock]:
        done = 0
        for piece in self._model.document(part.number, part.tokens, part.end):
            n, unread = piece.latent.shape[1], max(0, part.start - done)
            if unread < n:
                yield self._block(piece.behind(unread), part.number, done + unread)
            done += n

    def __call__(self, part: DocumentPart) -> list[RoutingBlock]:
        return list(self.pieces(part))

    def _block(self, piece: LatentChunk, document: int, start: int) -> RoutingBlock:
        return _block(
            piece, self._model, self.header, self.calibration, document, start, self.phase
        )

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _blocks(
    make: DocumentMaker, parts: Iterator[DocumentPart], alone: bool
) -> Generator[RoutingBlock, None, None]:
    """The parts in order; with the help of a second process where there are many of them."""
    header = make.header
    alone, made = alone or not _second_core(), 0
    for part in parts:
        yield from make.pieces(part)
        made += part.end - part.start
        if not alone and made * header.num_layers * header.num_experts > ALONE_LOGITS:
            with closing(make_documents(make, parts)) as others:
                for blocks in others:
                    yield from blocks


def _second_core() -> bool:
    """Whether there is one to use: processes of a study with jobs share them already."""
    return (os.cpu_count() or 1) > 1 and parent_process() is None


def _lengths(calibration: Calibration, given: Sequence[int] | None, seed: int) -> Iterator[int]:
    rng = np.random.default_rng([seed, _LENGTHS])
    quantiles = calibration.document_tokens
    points = np.linspace(0.0, 1.0, len(quantiles))
    while True:
        if given is not None:
            yield from (max(1, int(n)) for n in given)
        else:
            yield int(np.interp(rng.random(), points, quantiles))


def _block(
    piece: LatentChunk,
    model: LatentModel,
    header: TraceHeader,
    calibration: Calibration,
    document: int,
    start: int,
    phase: int,
) -> RoutingBlock:
    n = piece.latent.shape[1]
    sharpness = calibration.logits.sharpness
    experts, scores = ranked_scores(piece.logits, header.ranks, sharpness)
    columns: dict[str, NDArray[Any]] = {
        "documents": np.full(n, document, np.uint32),
        "positions": np.arange(start, start + n, dtype=np.uint32),
        "phases": np.full(n, phase, np.uint8),
        "experts": _stored(experts, header),
        "scores": _stored(scores, header),
    }
    if header.has_weights:
        chosen = scores[..., : header.top_k]
        columns["weights"] = _stored(chosen / chosen.sum(axis=-1, keepdims=True), header)
    if header.forecast_depth:
        columns |= _forecasts(piece, model, header, sharpness)
    return RoutingBlock(**columns)


def ranked_scores(
    logits: NDArray[np.float32], ranks: int, sharpness: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The best `ranks` experts, best first, and their softmax probabilities among all."""
    ranked = best_experts(logits, ranks)
    scaled = np.float32(sharpness) * logits
    top = np.take_along_axis(scaled, ranked, axis=-1)
    scaled -= top[..., :1]
    total = np.exp(scaled, out=scaled).sum(axis=-1, keepdims=True)
    return ranked, np.exp(top - top[..., :1]) / total


def best_experts(logits: NDArray[np.float32], ranks: int) -> NDArray[np.int64]:
    """Numbers of the `ranks` largest logits, largest first."""
    if logits.size < COMPILED_FROM or ranks == logits.shape[-1]:
        return _sorted_best(logits, ranks)
    from moesaic.workloads.synthetic.best_of_rows import best_of_rows  # loads the compiler

    rows = np.ascontiguousarray(logits).reshape(-1, logits.shape[-1])
    found, tied = best_of_rows(rows, ranks)
    if tied.any():
        found[tied] = _sorted_best(rows[tied], ranks)
    return found.reshape(*logits.shape[:-1], ranks)


def _sorted_best(logits: NDArray[np.float32], ranks: int) -> NDArray[np.int64]:
    if ranks == logits.shape[-1]:
        return np.argsort(-logits, axis=-1)
    found = np.argpartition(-logits, ranks, axis=-1)[..., :ranks]
    order = np.argsort(-np.take_along_axis(logits, found, axis=-1), axis=-1)
    return np.take_along_axis(found, order, axis=-1)


def _forecasts(
    piece: LatentChunk, model: LatentModel, header: TraceHeader, sharpness: float
) -> dict[str, NDArray[Any]]:
    n = piece.latent.shape[1]
    shape = (header.num_layers, n, header.forecast_depth, header.forecast_ranks)
    experts, scores = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for d in range(min(header.forecast_depth, header.num_layers - 1)):
        ahead = model.forecast(piece, d + 1)
        found = ranked_scores(ahead, header.forecast_ranks, sharpness)
        experts[: len(ahead), :, d], scores[: len(ahead), :, d] = found
    return {
        "forecast_experts": _stored(experts, header),
        "forecast_scores": _stored(scores, header),
    }


def _stored(by_layer: NDArray[Any], header: TraceHeader) -> NDArray[Any]:
    """[L, n, ...] as a block keeps it: [n, L, ...], small types."""
    whole = np.issubdtype(by_layer.dtype, np.integer)
    dtype = np.dtype(f"<u{header.expert_bytes}" if whole else "<f2")
    return np.ascontiguousarray(by_layer.swapaxes(0, 1), dtype=dtype)
