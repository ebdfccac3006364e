"""No prefetching, but of experts that tokens which run again are known to want."""

from __future__ import annotations

from moesaic.core.routing import ExpertId
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import Outlook, Prefetch
from moesaic.policies.prefetch.next_layer import propose_of_layer
from moesaic.policies.records import State


@compiled
def given_forecasts(s: State) -> int:
    """The likeliest of every forecast that there is."""
    picked = 0
    for number in range(s.forecasts.count):
        picked = propose_of_layer(s, number, picked)
    return picked


class NoPrefetch(Prefetch):
    rule = staticmethod(given_forecasts)
    predicts = False

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        return []
