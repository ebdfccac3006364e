"""Records an engine's routing as a trace.

The engine works in steps of many documents; a trace holds documents one after another. So the
recorder keeps each document's tokens until `end_document` (or `close`) and then writes them:
it holds the documents that are still open, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moesaic.core.confidence import UNKNOWN, Confidence
from moesaic.core.errors import EngineFailed
from moesaic.core.routing import Forecast
from moesaic.workloads.block import CONFIDENCE, PHASES, RoutingBlock, columns_of, join
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.reader import PathLike
from moesaic.workloads.writer import TraceWriter


class Recorder:
    """A context manager; the file appears when it is left without an error.

    Per step: `begin_step`, then `layer` for every MoE layer, then `end_step`. Documents may have
    any numbers; in the trace they are counted from 0 in the order in which they ended."""

    def __init__(self, path: PathLike, header: TraceHeader) -> None:
        self.header = header
        self._writer = TraceWriter(path, header)
        self._open: dict[int, list[RoutingBlock]] = {}
        self._written = 0
        self._step: RoutingBlock | None = None
        self._missing: set[int] = set()

    def __enter__(self) -> Recorder:
        self._writer.__enter__()
        return self

    def begin_step(
        self, documents: ArrayLike, positions: ArrayLike, phase: str | Sequence[str]
    ) -> None:
        """A forward pass over one token per entry; `positions` count within the documents. Where
        some documents are still being read and others written, every token has its own phase."""
        assert self._step is None, "begin_step before the last step's end_step"
        numbers = np.asarray(documents, dtype=np.uint32)
        shapes = columns_of(self.header, len(numbers))
        columns = {name: np.zeros(shape, dtype=dtype) for name, dtype, shape in shapes}
        columns["documents"] = numbers
        columns["positions"] = np.asarray(positions, dtype=np.uint32)
        phases = [phase] * len(numbers) if isinstance(phase, str) else phase
        assert len(phases) == len(numbers), f"{len(phases)} phases for {len(numbers)} tokens"
        columns["phases"] = np.array([PHASES.index(each) for each in phases], dtype=np.uint8)
        if self.header.has_counts:
            columns["counts"][:] = self.header.top_k
        if self.header.has_confidence:
            for name in CONFIDENCE:
                columns[name][:] = UNKNOWN
        self._step = RoutingBlock(**columns)
        self._missing = set(range(self.header.num_layers))

    def layer(
        self,
        layer: int,
        experts: NDArray[Any],
        weights: NDArray[Any] | None = None,
        ranked: NDArray[Any] | None = None,
        scores: NDArray[Any] | None = None,
        forecasts: Sequence[Forecast] = (),
        counts: NDArray[Any] | None = None,
    ) -> None:
        """What the router of one layer said; what the header does not announce is left out. Where
        tokens use fewer than top-k (`counts`, the same in every layer), `ranked` says what the
        router had instead of padding."""
        step = self._step
        assert step is not None, "layer outside begin_step and end_step"
        stored = (experts if ranked is None else ranked)[:, : self.header.ranks]
        if counts is not None:
            self._counts(step, layer, counts)
            assert stored.min(initial=0) >= 0, "ranked experts must be known, also unused ones"
        step.experts[:, layer] = stored
        if step.weights is not None:
            assert weights is not None, "the header promises weights"
            step.weights[:, layer] = weights
        if step.scores is not None:
            given = weights if scores is None else scores
            assert given is not None, "the header promises scores"
            step.scores[:, layer] = given[:, : self.header.ranks]
        self._forecasts(step, layer, forecasts)
        self._missing.discard(layer)

    def _counts(self, step: RoutingBlock, layer: int, counts: NDArray[Any]) -> None:
        assert step.counts is not None, "the header promises no counts"
        first = len(self._missing) == self.header.num_layers
        same = first or (step.counts == counts).all()
        assert same, f"tokens use other numbers of experts in layer {layer}"
        step.counts[:] = counts

    def _forecasts(self, step: RoutingBlock, layer: int, forecasts: Sequence[Forecast]) -> None:
        if step.forecast_experts is None or step.forecast_scores is None:
            return
        expected = min(self.header.forecast_depth, self.header.num_layers - layer - 1)
        given = {f.layer - layer - 1: f for f in forecasts}
        for depth in range(expected):
            assert depth in given, f"layer {layer} lacks its forecast of layer {layer + 1 + depth}"
            ranks = self.header.forecast_ranks
            step.forecast_experts[:, layer, depth] = given[depth].ranked[:, :ranks]
            step.forecast_scores[:, layer, depth] = given[depth].scores[:, :ranks]

    def end_step(
        self, kept: NDArray[np.bool_] | None = None, confidence: Confidence | None = None
    ) -> None:
        """The pass is done; only the `kept` tokens are recorded (None: all), with how sure the
        model was after each of them, where that is known and the header announces it."""
        assert self._step is not None, "end_step without begin_step"
        if self._missing:
            layers = ", ".join(map(str, sorted(self._missing)))
            raise EngineFailed(f"a recorded step lacks the routing of layers {layers}")
        step = self._step
        if self.header.has_confidence and confidence is not None:
            step = replace(step, **confidence._asdict())
        if kept is not None and not kept.all():
            step = step.rows(kept)
        for number in dict.fromkeys(step.documents.tolist()):
            rows = step.rows(step.documents == number)
            self._open.setdefault(number, []).append(rows)
        self._step = None

    def abandon_step(self) -> None:
        """Forget the step that was begun, if any: it will not be finished."""
        self._step = None

    def end_document(self, document: int) -> None:
        """The document gets no more tokens: write it out."""
        whole = join(self._open.pop(document))
        whole.documents[:] = self._written
        self._written += 1
        self._writer.write(whole)

    def close(self) -> None:
        self.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                for document in sorted(self._open):
                    self.end_document(document)
            except BaseException as failure:
                self._writer.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._writer.__exit__(kind, error, tb)
