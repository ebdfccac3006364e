"""Prefetching for tokens that run again: what the routers of the rejected pass wanted.

A decider around a brain (core/body.py). It remembers the ranking of every layer of a pass, all of
top-k, whatever the tokens used of it. In the next pass, tokens that run again have known wants in
every layer from the beginning: they are handed to the brain as forecasts of the next layers,
instead of what the body or the brain would predict. Other tokens are forecast as in any pass.

A machine that asks the brain without Python takes what is known of a pass before it begins, does
the same (native/conductor/look_ahead.cpp) and leaves what that pass wanted (core/rerun_decider.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import LayerReport
from moesaic.core.rerun_decider import KnownWants, PassWants, RerunDecider
from moesaic.core.routing import UNUSED, Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.policies.brain import Brain
from moesaic.policies.gate.base import Gate


class RankedExperts(NamedTuple):
    """A layer's best experts, [tokens, top-k]."""

    ranked: NDArray[np.int64]
    scores: NDArray[np.float32]


class FallbackPrefetch(RerunDecider):
    """`begin` comes before every pass; `accuracy` is the share of experts used by tokens that ran
    again which the rejected pass had wanted, None before the first."""

    def __init__(self, brain: Brain, gate: Gate) -> None:
        self.brain = self._brain = brain
        self._gate = gate
        # By layer: the pass that runs, and those before it, the latest first.
        self._now: dict[int, RankedExperts] = {}
        self._before: deque[dict[int, RankedExperts]] = deque(maxlen=max(gate.draft, 1))
        self._num_layers = 0  # of a pass that was not given up
        self._rows: NDArray[np.int64] | None = None
        self.right = self.judged = 0

    @property
    def accuracy(self) -> float | None:
        return self.right / self.judged if self.judged else None

    def begin(self, rows: Sequence[int], ages: Sequence[int] | None = None) -> None:
        """`rows[t]`: which row token t had in a pass that is run again, -1: it is new. That was
        `ages[t]` passes ago, or in the last one. Of passes that were given up, or that are longer
        ago than any gate needs, nothing is known."""
        self._before.appendleft(self._now)
        self._num_layers, self._now = max(self._num_layers, len(self._now)), {}
        when = np.ones(len(rows), dtype=np.int64) if ages is None else np.asarray(ages)
        whole = [self._whole(each) for each in self._before]
        kept = np.array([age <= len(whole) and whole[age - 1] for age in when.tolist()])
        known = np.where(kept, np.asarray(rows, dtype=np.int64), -1)
        self._ages = None if max(when, default=1) <= 1 else when
        self._rows = known if (known >= 0).any() else None
        self._distance = 0
        if self._rows is not None:
            transfer_ns = self._brain.belief.transfer_ns
            self._distance = self._gate.prefetch_distance(self._brain.layer_ns, transfer_ns)

    def _whole(self, wanted: dict[int, RankedExperts]) -> bool:
        return 0 < len(wanted) == self._num_layers

    def known(self) -> KnownWants | None:
        rows = self._rows
        if rows is None:
            return None
        again = rows >= 0
        layers = [self._known(layer, rows) for layer in range(self._num_layers)]
        shape = (len(layers), len(rows), layers[0].ranked.shape[1])
        ranked = np.full(shape, UNUSED, dtype=np.int64)
        scores = np.zeros(shape, dtype=np.float32)
        ranked[:, again] = np.stack([each.ranked for each in layers])
        scores[:, again] = np.stack([each.scores for each in layers])
        trusted = self._gate.draft > 0
        return KnownWants(PassWants(ranked, scores), self._distance, bool(again.all()), trusted)

    def note_pass(self, wants: PassWants, right: int, judged: int) -> None:
        self._now = dict(enumerate(map(RankedExperts, wants.ranked, wants.scores)))
        self.right, self.judged = right, judged

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        self._routing = routing
        self._now[routing.layer] = self.wanted(routing)
        if self._rows is not None:
            self._judge(routing, self._rows)
        return self._brain.decide(routing, view)

    def wanted(self, routing: LayerRouting) -> RankedExperts:
        """What a layer's router would have chosen with all of top-k."""
        ranks = slice(routing.experts.shape[1])
        return RankedExperts(routing.ranked[:, ranks], routing.scores[:, ranks])

    def latest(self, row: int) -> RankedExperts | None:
        """What all layers' routers ranked within top-k for one token of the pass that has just
        ended, [layers, top-k]; None: the pass was given up."""
        if len(self._now) < max(self._num_layers, 1):
            return None
        layers = [self._now[layer] for layer in range(len(self._now))]
        return RankedExperts(
            np.stack([each.ranked[row] for each in layers]),
            np.stack([each.scores[row] for each in layers]),
        )

    def wants_forecasts(self) -> int:
        """The body need not forecast where everything is known."""
        depth = self._brain.wants_forecasts()
        return depth if self._rows is None or (self._rows < 0).any() else 0

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        if self._rows is None:
            return self._brain.look_ahead(forecasts)
        merged = [self._forecast(at, self._rows, forecasts) for at in self._layers(forecasts)]
        return self._brain.look_ahead(merged, body_forecasts=bool(forecasts))

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        self._brain.learn(routing, report)

    def _layers(self, forecasts: Sequence[Forecast]) -> list[int]:
        """The next ones that something is known of, nearest first."""
        first, last = self._routing.layer + 1, self._num_layers
        known = range(first, min(first + self._distance, last))
        return sorted({*known, *(each.layer for each in forecasts)})

    def _forecast(
        self, layer: int, rows: NDArray[np.int64], forecasts: Sequence[Forecast]
    ) -> Forecast:
        """The known rows over those of the body's forecast; beyond the distance, the body's own."""
        body = next((each for each in forecasts if each.layer == layer), None)
        if layer > self._routing.layer + self._distance:
            assert body is not None, "a layer that was forecast"
            return body
        again = rows >= 0
        wanted = self._known(layer, rows)
        trust = 1.0 if self.accuracy is None else self.accuracy
        if again.all():
            ranked, scores = wanted
            return Forecast(layer, ranked, scores, self._routing.step, trust)
        ranked = np.full((len(rows), wanted.ranked.shape[1]), UNUSED, dtype=np.int64)
        scores = np.zeros(ranked.shape, dtype=np.float32)
        if body is not None:
            ranks = min(ranked.shape[1], body.ranked.shape[1])
            ranked[:, :ranks], scores[:, :ranks] = body.ranked[:, :ranks], body.scores[:, :ranks]
        ranked[again], scores[again] = wanted
        if body is not None:
            return replace(body, ranked=ranked, scores=scores)
        # Of a check all but the last draft is known; of another mixture the brain must judge.
        known = trust if self._gate.draft else None
        return Forecast(layer, ranked, scores, self._routing.step, known)

    def _known(self, layer: int, rows: NDArray[np.int64]) -> RankedExperts:
        """What the tokens that run again wanted of a layer, in their order."""
        again = np.flatnonzero(rows >= 0)
        if self._ages is None:
            last = self._before[0][layer]
            return RankedExperts(last.ranked[rows[again]], last.scores[rows[again]])
        sources = [self._before[self._ages[token] - 1][layer] for token in again]
        pairs = list(zip(sources, rows[again], strict=True))
        return RankedExperts(
            np.stack([source.ranked[row] for source, row in pairs]),
            np.stack([source.scores[row] for source, row in pairs]),
        )

    def _judge(self, routing: LayerRouting, rows: NDArray[np.int64]) -> None:
        again = rows >= 0
        chosen, wanted = routing.experts[again], self._known(routing.layer, rows).ranked
        predicted = (chosen[:, :, None] == wanted[:, None, :]).any(axis=2)
        self.right += int(predicted.sum())
        self.judged += int((chosen != UNUSED).sum())
