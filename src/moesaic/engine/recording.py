"""Records a routing trace of a run: a listener of every layer's routing.

Every request is a document. The trace has whole steps only, and holds what the routing carries:
the chosen experts and their weights, and the next best with their scores.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moesaic.core.confidence import Confidence
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.files import refuse_special
from moesaic.core.routing import LayerRouting
from moesaic.model_info.model_spec import ModelSpec
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.recorder import Recorder


def check_writable(path: str | os.PathLike[str], option: str = "record") -> None:
    """Raise `ImpossibleSetting` unless a file can be written there."""
    target = Path(path)
    refuse_special(path, option)
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise ImpossibleSetting(
            f"{option} {str(path)!r} cannot be written ({error.strerror}): give a file in a "
            "directory that exists and can be written to"
        ) from None


class RoutingRecording:
    """`on_routing` is the listener of every pass. `begin` names the tokens of the next step, `end`
    closes a request's document. `close` writes the file, unless something failed before."""

    def __init__(
        self, path: str | os.PathLike[str], spec: ModelSpec, source: str | None = None
    ) -> None:
        """`source`: what the file says of where it is from."""
        self._path, self._spec = path, spec
        self._source = source or f"recorded while {spec.name} generated text"
        self._recorder: Recorder | None = None  # opened when the first routing shows its shape
        self._documents: Sequence[int] = ()
        self._positions: Sequence[int] = ()
        self._phases: Sequence[str] = ()
        self._open: set[int] = set()  # documents with whole steps
        self._closed = False

    def begin(
        self, documents: Sequence[int], positions: Sequence[int], phases: Sequence[str]
    ) -> None:
        """The tokens of the step that is about to be done, one entry each."""
        self._documents, self._positions, self._phases = documents, positions, phases

    def keep(self, tokens: Sequence[int], again: Sequence[int], confidence: Confidence) -> None:
        """The step is done. `tokens` are those of each sequence; of the ones in `again`, the last
        is run again and not recorded now. `confidence` is of every sequence's last token."""
        if self._recorder is None:
            return
        ends = np.cumsum(tokens) - 1
        kept = np.ones(len(self._documents), dtype=np.bool_)
        kept[ends[list(again)]] = False
        of_tokens = Confidence.unknown(len(kept))
        for column, known in zip(of_tokens, confidence, strict=True):
            column[ends] = known
        self._recorder.end_step(kept, of_tokens)
        self._open.update(np.asarray(self._documents)[kept].tolist())

    def end(self, document: int) -> None:
        """The request is over. What cannot be written whole is not written at all."""
        if self._recorder is None or document not in self._open:
            return
        self._open.remove(document)
        try:
            self._recorder.end_document(document)
        except BaseException as error:
            self.discard(error)
            raise

    def abandon_step(self) -> None:
        """The step failed or was interrupted. Earlier steps stay recorded, and its tokens may run
        again."""
        if self._recorder is not None:
            self._recorder.abandon_step()

    def close(self) -> None:
        """Write the file."""
        self._closed = True
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()

    def discard(self, error: BaseException) -> None:
        """Something failed: leave no file, and record no more."""
        self._closed = True
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.__exit__(type(error), error, error.__traceback__)

    def on_routing(self, routing: LayerRouting) -> None:
        if self._closed:
            return
        if self._recorder is None:
            self._recorder = Recorder(self._path, self._header(routing)).__enter__()
        if routing.layer == 0:
            self._recorder.begin_step(self._documents, self._positions, self._phases)
        self._recorder.layer(
            routing.layer,
            routing.experts,
            routing.weights,
            routing.ranked,
            routing.scores,
            counts=routing.counts,
        )

    def _header(self, routing: LayerRouting) -> TraceHeader:
        spec, ranks = self._spec, routing.ranked.shape[1]
        return TraceHeader(
            model=spec.name,
            num_layers=spec.num_moe_layers,
            num_experts=spec.num_experts,
            top_k=spec.top_k,
            ranks=ranks,
            has_weights=True,
            has_counts=True,
            has_confidence=True,
            has_scores=ranks > spec.top_k,  # otherwise they are the weights once more
            source=self._source,
        )
