"""The little model: what is generated uses the k best of top-k experts, and every token stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.gate.base import Gate, GateStep


class Little(Gate):
    """Prompts are read with all experts: reading is bound by compute, and the KV cache is that of
    the whole model."""

    def __init__(self, top_k: int, k: int | None = None) -> None:
        super().__init__(top_k)
        self.k = little_k("little", top_k, k)

    def experts_per_token(self, step: GateStep) -> NDArray[np.int64] | None:
        if all(step.prompt):
            return None
        return np.repeat(np.where(step.prompt, self.top_k, self.k), step.tokens)


def little_k(gate: str, top_k: int, k: int | None) -> int:
    """Half of top-k, at least 1, unless asked for."""
    if k is None:
        return max(top_k // 2, 1)
    if not 1 <= k <= top_k:
        raise ImpossibleSetting(
            f"gate {gate!r}: k is {k}, but the model uses {top_k} experts per token: k must be a "
            f"whole number from 1 to {top_k}, or auto, which is {max(top_k // 2, 1)} here"
        )
    return k
