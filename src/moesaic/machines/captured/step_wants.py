"""What tokens that run again wanted before, and what a step's routers want: arrays that the
conductor reads and fills (native/conductor/wants.h)."""

from __future__ import annotations

import numpy as np

from moesaic.core.rerun_decider import PassWants, RerunDecider


class StepWants:
    """What tokens wanted in one step of so many tokens, which the decider has begun."""

    def __init__(self, decider: RerunDecider, layers: int, tokens: int, top_k: int) -> None:
        self._decider, self._known = decider, decider.known()
        shape = (layers, tokens, top_k)
        self._seen = PassWants(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32))
        if self._known is not None:
            assert self._known.wants.ranked.shape == shape, "wants of all layers and tokens"

    def settings(self) -> dict[str, int]:
        """Addresses and numbers for the native conductor."""
        known, seen, decider = self._known, self._seen, self._decider
        found = {
            "ids": 0, "scores": 0, "distance": 0, "whole": 0, "trusted": 0,
            "seen_ids": seen.ranked.ctypes.data, "seen_scores": seen.scores.ctypes.data,
            "right": decider.right, "judged": decider.judged,
        }  # fmt: skip
        if known is not None:
            found["ids"] = known.wants.ranked.ctypes.data
            found["scores"] = known.wants.scores.ctypes.data
            found["distance"] = known.distance
            found["whole"], found["trusted"] = int(known.whole), int(known.trusted)
        return found

    def hand_over(self, right: int, judged: int) -> None:
        """After the step."""
        self._decider.note_pass(self._seen, right, judged)
