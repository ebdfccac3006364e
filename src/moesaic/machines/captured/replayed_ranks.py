"""Routing of a trace in as many ranks as a captured step has space for. A recorded trace may know
the chosen experts only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import LayerRouting


def ranked_to(
    ranks: int, experts: int, routing: LayerRouting
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Experts by rank and their scores, both [tokens, ranks]. What the trace does not rank follows
    in order of number, with a score of nothing."""
    ranked, scores = routing.ranked[:, :ranks], routing.scores[:, :ranks]
    missing = ranks - ranked.shape[1]
    if missing <= 0:
        return ranked, scores
    unranked = np.ones((len(ranked), experts), dtype=bool)
    np.put_along_axis(unranked, ranked, False, axis=1)
    rest = np.argsort(~unranked, axis=1, kind="stable")[:, :missing].astype(np.int64)
    nothing = np.zeros((len(ranked), missing), dtype=np.float32)
    return np.concatenate([ranked, rest], 1), np.concatenate([scores, nothing], 1)
