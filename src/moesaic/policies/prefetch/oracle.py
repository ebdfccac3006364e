"""Impact with perfect foresight of the next layers: how much better predictions could help."""

from __future__ import annotations

import numpy as np

from moesaic.core.routing import ExpertId
from moesaic.policies.prefetch.base import Outlook
from moesaic.policies.prefetch.impact import Impact


class OraclePrefetch(Impact):
    needs_future = True

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        assert outlook.future is not None, "the oracle prefetch was not given the future"
        first = outlook.layer + 1
        last = min(outlook.layer + self.lookahead, outlook.resident.shape[0] - 1)
        outlook.trust = (1.0,) * self.lookahead
        chosen = []
        for layer in range(first, last + 1):
            loads = outlook.future.layer_loads(layer)
            chosen.append(np.repeat(np.arange(len(loads)), loads)[None, :])
        return self.rank(outlook, first, chosen)
