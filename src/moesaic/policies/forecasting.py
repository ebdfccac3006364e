"""What later layers will want: the gates' own forecasts where routing carries them, a learned
prediction where it does not; and how often either has been right."""

from __future__ import annotations

from moesaic.core.routing import Forecast, LayerRouting
from moesaic.policies.compiled import compiled
from moesaic.policies.layer_predictor import LayerPredictor
from moesaic.policies.shape import Shape
from moesaic.policies.timelines import Ints

_MEMORY = 0.02  # weight of the newest layer in the running share of right predictions


@compiled
def _right(predicted: Ints, chosen: Ints, ranks: int) -> int:
    """How many of the first `ranks` predictions per token came true."""
    right = 0
    for token in range(chosen.shape[0]):
        for rank in range(ranks):
            for expert in chosen[token]:
                if predicted[token, rank] == expert:
                    right += 1
    return right


class Foresight:
    """`trust[d]` is the running share of right predictions d + 1 layers ahead, full before the
    first; `accuracy` is the same, and empty where no prediction has been judged."""

    def __init__(self, shape: Shape, lookahead: int) -> None:
        self.lookahead = lookahead
        self._top_k = shape.top_k
        self._predictor: LayerPredictor | None = None
        if lookahead:
            self._predictor = LayerPredictor(shape.layers, shape.experts, shape.top_k, lookahead)
        self._trust = [1.0] * lookahead
        self._judged = False
        self._pending: dict[int, list[tuple[int, Forecast]]] = {}

    @property
    def trust(self) -> tuple[float, ...]:
        return tuple(self._trust)

    @property
    def accuracy(self) -> tuple[float, ...]:
        return self.trust if self._judged else ()

    def observe(self, routing: LayerRouting) -> None:
        if self._predictor is None:
            return
        if not routing.forecasts:
            self._predictor.observe(routing)
        if routing.layer == 0:
            self._pending.clear()
        for distance, forecast in self._pending.pop(routing.layer, ()):
            self._judge(distance, forecast, routing)

    def forecast(self, routing: LayerRouting) -> tuple[Forecast, ...]:
        if self._predictor is None:
            return ()
        ahead = tuple(routing.forecasts[: self.lookahead]) or self._predictor.forecast(routing)
        k = self._top_k
        cut = tuple(Forecast(f.layer, f.ranked[:, :k], f.scores[:, :k]) for f in ahead)
        for forecast in cut:
            distance = forecast.layer - routing.layer
            self._pending.setdefault(forecast.layer, []).append((distance, forecast))
        return cut

    def _judge(self, distance: int, forecast: Forecast, routing: LayerRouting) -> None:
        if len(forecast.ranked) != routing.num_tokens:
            return
        self._judged = True
        ranks = forecast.ranked.shape[1]
        share = _right(forecast.ranked, routing.experts, ranks) / (ranks * routing.num_tokens)
        self._trust[distance - 1] += _MEMORY * (share - self._trust[distance - 1])
