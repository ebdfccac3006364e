"""Self-speculative decoding: the little model drafts, one pass of the full model checks.

Several tokens in a row are drafted with the k best of top-k experts. Then all of them run again at
their positions, in one pass with all experts, whose entries overwrite those of the drafts in the KV
cache: drafts stand as far as they are what the full model says, and its own token follows. So the
text is the full model's, and the checked tokens share what experts they read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.gate.base import MAX_DISTANCE, Gate, GateStep
from moesaic.policies.gate.little import little_k


class SelfSpeculative(Gate):
    draft = 4

    def __init__(self, top_k: int, draft: int = 4, k: int | None = None) -> None:
        super().__init__(top_k)
        self.k = little_k("self-speculative", top_k, k)
        self.draft = draft if self.k < top_k else 0  # drafts with all experts need no check

    def experts_per_token(self, step: GateStep) -> NDArray[np.int64] | None:
        big = np.array(step.prompt) | (np.array(step.attempts) > 0)
        if big.all():
            return None
        return np.repeat(np.where(big, self.top_k, self.k), step.tokens)

    def prefetch_distance(self, layer_ns: int, transfer_ns: int) -> int:
        """The number of layers that the experts beyond those of the drafts take on the link."""
        missing_ns = (self.top_k - self.k) * transfer_ns
        return int(np.clip(-(-missing_ns // max(layer_ns, 1)), 1, MAX_DISTANCE))
