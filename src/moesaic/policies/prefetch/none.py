"""No prefetching."""

from __future__ import annotations

from moesaic.core.routing import ExpertId
from moesaic.policies.prefetch.base import NOTHING, Outlook, Prefetch


class NoPrefetch(Prefetch):
    rule = NOTHING

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        return []
