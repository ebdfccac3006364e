"""What an oracle knows: the whole routing of a run, before it happens. For bounds only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import Forecast

NEVER = np.iinfo(np.int32).max


class Future:
    """Loads of every step; `step` is the one under way, as the brain's routings say.

    Uses are counted in layer executions from the start of the run, so that experts of
    different layers compare (global slots)."""

    def __init__(self, loads: NDArray[np.uint32]) -> None:
        self.loads = loads  # [steps, layers, experts]
        self.step = -1
        self._next = _next_uses(loads)

    def next_use(self, layer: int) -> NDArray[np.int32]:
        """Per expert of the layer, when it is used after this step."""
        uses: NDArray[np.int32] = self._next[self.step + 1, layer]
        return uses

    def forecasts(self, layer: int, lookahead: int) -> tuple[Forecast, ...]:
        """The truth about the layers after this one, as a prediction that is never wrong."""
        last = min(layer + lookahead, self.loads.shape[1] - 1)
        return tuple(self._truth(later) for later in range(layer + 1, last + 1))

    def _truth(self, layer: int) -> Forecast:
        loads = self.loads[self.step, layer].astype(np.int64)
        chosen = np.repeat(np.arange(len(loads)), loads)[None, :]
        return Forecast(layer, chosen, np.ones(chosen.shape, dtype=np.float32))


def _next_uses(loads: NDArray[np.uint32]) -> NDArray[np.int32]:
    """`[s, l, e]`: the first use of the expert at step s or later; one more row for the end."""
    steps, layers, experts = loads.shape
    uses = np.full((steps + 1, layers, experts), NEVER, dtype=np.int32)
    moment = np.arange(layers, dtype=np.int32)[:, None]
    for step in range(steps - 1, -1, -1):
        uses[step] = np.where(loads[step] > 0, step * layers + moment, uses[step + 1])
    return uses
