"""What tokens that run again take over from their rejected pass, as one pass' worth of arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from moesaic.models.experts.reused_routing import ReusedRouting
from moesaic.policies.fallback_prefetch import RankedExperts
from moesaic.policies.gate.base import GateStep
from moesaic.policies.gate.reuse import REUSE_ROUTING, ROUTE_AGAIN


def reused_routing(
    step: GateStep, known: Sequence[RankedExperts | None], reuses: Sequence[str]
) -> ReusedRouting | None:
    """Per sequence: what the routers of all layers said of its last token, [layers, top-k], or
    None, and how much of it is reused. None: every token is routed."""
    rows = np.cumsum(step.tokens) - 1
    given = [
        (row, wanted, reuse)
        for row, wanted, reuse in zip(rows.tolist(), known, reuses, strict=True)
        if wanted is not None and reuse != ROUTE_AGAIN
    ]
    if not given:
        return None
    tokens, (layers, top_k) = sum(step.tokens), given[0][1].ranked.shape
    experts = np.zeros((layers, tokens, top_k), dtype=np.int64)
    scores = np.zeros((layers, tokens, top_k), dtype=np.float32)
    is_given, weighed = np.zeros((2, tokens), dtype=np.bool_)
    for row, wanted, reuse in given:
        experts[:, row], scores[:, row] = wanted
        is_given[row], weighed[row] = True, reuse == REUSE_ROUTING
    return ReusedRouting(*map(torch.from_numpy, (experts, scores, is_given, weighed)))
