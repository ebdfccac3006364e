"""What a layout is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesaic.core.layer_plan import Move
from moesaic.core.offloading import IN_DRAM
from moesaic.core.view import View
from moesaic.policies.belief import Belief

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Profile:
    """`loads[samples, layer, expert]` of steps like those to come."""

    loads: Ints
    belief: Belief


class Layout:
    """Keeps state: made for one run. `adapts`: whether it moves experts at run time."""

    adapts: bool = False

    def __init__(self, layers: int, experts: int) -> None:
        self.layers, self.experts = layers, experts
        self.copied = np.zeros((layers, experts), dtype=np.bool_)  # also in main memory's own way

    def initial(self, profile: Profile, resident: NDArray[np.bool_]) -> Ints:
        """[layers, experts]: the placement of each expert in main memory; `resident` are also in
        GPU memory. The default is main memory's own placement."""
        return np.full((self.layers, self.experts), IN_DRAM, dtype=np.int64)

    def observe(self, layer: int, loads: Ints) -> None:
        """A layer's loads of this step, in the order in which layers run."""

    def propose(self, layer: int, view: View, belief: Belief) -> tuple[Move, ...]:
        """Background moves while this layer runs and until the next is routed, best first."""
        return ()

    def learn(self, layer: int, start_ns: int, end_ns: int) -> None:
        """When the layer's experts ran."""


class Striped(Layout):
    """Every expert striped over all of main memory."""
