"""Which experts will later layers choose? Learned from the routing seen so far, for traces that
do not carry the later gates' own answers.

Naive Bayes over adjacent layers: the experts a token chose in layer l speak for those it will
choose in layer l + d, for d up to the look-ahead. Nothing is trained beforehand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import Forecast, LayerRouting
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

Floats = NDArray[np.float64]

_SMOOTH = 0.1


@compiled
def _count_pairs(earlier: Ints, later: Ints, pairs: Floats) -> None:
    for token in range(earlier.shape[0]):
        for a in earlier[token]:
            for b in later[token]:
                if a >= 0 and b >= 0:  # else padding
                    pairs[b, a] += 1.0


@compiled
def _rank(
    chosen: Ints, pairs: Floats, uses: Floats, ranked: Ints, scores: Floats, posterior: Floats
) -> None:
    """The likeliest experts per token, best first, with normalised posteriors."""
    experts = uses.shape[0]
    for token in range(chosen.shape[0]):
        total = 0.0
        for b in range(experts):
            likelihood = uses[b] + 1.0
            for a in chosen[token]:
                if a >= 0:  # else padding
                    likelihood *= (pairs[b, a] + _SMOOTH) / (uses[b] + _SMOOTH * experts)
            posterior[b] = likelihood
            total += likelihood
        for rank in range(ranked.shape[1]):
            best = 0
            for b in range(1, experts):
                if posterior[b] > posterior[best]:
                    best = b
            ranked[token, rank] = best
            scores[token, rank] = posterior[best] / total
            posterior[best] = -1.0


class LayerPredictor:
    """Counts pairs of experts chosen by one token in layers l and l + d; predicts from them."""

    def __init__(self, layers: int, experts: int, top_k: int, lookahead: int = 3) -> None:
        self.lookahead = lookahead
        self._layers = layers
        self._ranks = top_k
        self._pairs = np.zeros((lookahead, layers, experts, experts))
        self._uses = np.zeros((layers, experts))
        self._posterior = np.zeros(experts)
        self._chosen: dict[int, Ints] = {}

    def observe(self, routing: LayerRouting) -> None:
        layer, chosen = routing.layer, routing.experts
        if layer == 0:
            self._chosen.clear()
        self._uses[layer] += routing.loads(self._uses.shape[1])
        for distance in range(1, self.lookahead + 1):
            earlier = self._chosen.get(layer - distance)
            if earlier is not None and len(earlier) == len(chosen):
                _count_pairs(earlier, chosen, self._pairs[distance - 1, layer])
        self._chosen[layer] = chosen

    def forecast(self, routing: LayerRouting) -> tuple[Forecast, ...]:
        """The next layers' experts, as far as the look-ahead and the model go."""
        last = min(routing.layer + self.lookahead, self._layers - 1)
        return tuple(self._one(routing, later) for later in range(routing.layer + 1, last + 1))

    def _one(self, routing: LayerRouting, later: int) -> Forecast:
        ranked = np.empty((routing.num_tokens, self._ranks), dtype=np.int64)
        scores = np.empty((routing.num_tokens, self._ranks))
        pairs = self._pairs[later - routing.layer - 1, later]
        _rank(routing.experts, pairs, self._uses[later], ranked, scores, self._posterior)
        return Forecast(later, ranked, scores.astype(np.float32))
