"""What an oracle knows: the whole routing of a run, before it happens. For bounds only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.timelines import Ints

NEVER = np.iinfo(np.int32).max


class Future:
    """Loads of every step; `step` is advanced by the brain as the run goes on.

    Uses are counted in layer executions from the start of the run, so that experts of
    different layers compare (global slots)."""

    def __init__(self, loads: NDArray[np.uint16]) -> None:
        self.loads = loads  # [steps, layers, experts]
        self.step = -1
        self._next = _next_uses(loads)

    def next_use(self, layer: int) -> NDArray[np.int32]:
        """Per expert of the layer, when it is used after this step."""
        uses: NDArray[np.int32] = self._next[self.step + 1, layer]
        return uses

    def layer_loads(self, layer: int) -> Ints:
        """The true loads of a layer in this step."""
        loads: Ints = self.loads[self.step, layer].astype(np.int64)
        return loads


def _next_uses(loads: NDArray[np.uint16]) -> NDArray[np.int32]:
    """`[s, l, e]`: the first use of the expert at step s or later; one more row for the end."""
    steps, layers, experts = loads.shape
    uses = np.full((steps + 1, layers, experts), NEVER, dtype=np.int32)
    moment = np.arange(layers, dtype=np.int32)[:, None]
    for step in range(steps - 1, -1, -1):
        uses[step] = np.where(loads[step] > 0, step * layers + moment, uses[step + 1])
    return uses
