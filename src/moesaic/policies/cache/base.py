"""What a cache policy is: a value per expert. The lowest goes; a newcomer must be worth more.

The policy sees routing and nothing else; it does not know what is resident. Choosing a victim
among the residents by these values is the ledger's work (ledger.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import LayerRouting

if TYPE_CHECKING:
    from moesaic.policies.future import Future


class Cache(ABC):
    """`values[l, e]` is what keeping expert e of layer l is worth, up to date after `observe`.

    `fixed` caches never change what is resident. `needs_future` asks for an oracle."""

    fixed: bool = False
    needs_future: bool = False

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        self.values: NDArray[np.float64] = np.zeros((layers, experts))
        self.top_k = top_k

    @abstractmethod
    def observe(self, routing: LayerRouting) -> None:
        """A layer was routed; called once per layer and step, in order."""

    def foresee(self, future: Future) -> None:
        """Receive the oracle; only caches with `needs_future` are asked."""
        raise NotImplementedError(f"{type(self).__name__} has no use for an oracle")
