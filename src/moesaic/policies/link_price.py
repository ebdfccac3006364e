"""What the link's time is worth to the layers that demand it.

A background transfer that is still under way when the next layer starts makes that layer's own
transfers wait. Layers differ in how much that hurts: one without misses does not care. So the
price, delay per time the link is late, is averaged over the layers seen."""

from __future__ import annotations

import numpy as np

from moesaic.policies.prefetch.base import MOST_BACKGROUND
from moesaic.policies.schedule.base import Work
from moesaic.policies.schedule.rules import delay_by_link
from moesaic.policies.timelines import TRANSFER, Ints

_UNIT = 1 << 20  # prices are integers, so that equal runs give equal bits
_MEMORY = 32  # layers


class LinkPrice:
    def __init__(self, experts: int) -> None:
        self._price = 0
        self._seen = 0
        self._scratch = np.zeros((4, experts), dtype=np.int64)
        self._delays = np.zeros(MOST_BACKGROUND + 1, dtype=np.int64)

    def observe(self, rule: int, work: Work, lanes: Ints) -> None:
        """Learn from a layer: what would half a transfer's lateness have cost it?"""
        late = max(int(lanes[TRANSFER]) // 2, 1)
        delay = delay_by_link(
            rule, work.n, work.table, work.belief.tables, lanes, late, self._scratch
        )
        self._seen = min(self._seen + 1, _MEMORY)
        self._price += (delay * _UNIT // late - self._price) // self._seen

    def delays(self, link_free_ns: int, transfer_ns: int, next_start_ns: int) -> Ints:
        """What 0, 1, 2, ... transfers from `link_free_ns` on are expected to cost the next
        layer; as many as can start before its experts do."""
        counts = 0
        while counts < MOST_BACKGROUND and link_free_ns + counts * transfer_ns < next_start_ns:
            counts += 1
            late = max(link_free_ns + counts * transfer_ns - next_start_ns, 0)
            self._delays[counts] = self._price * late // _UNIT
        return self._delays[: counts + 1]
