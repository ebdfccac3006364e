"""What a captured step ends with: each has a graph of its own, captured when it is first wanted."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from moesaic.machines.real.forward_pass import RowSampling


class Ending(Enum):
    LOGITS = "logits"  # which come back to the host
    GREEDY = "greedy"  # the best token of every row
    SAMPLED = "sampled"  # a token of every row by its own parameters, the best one among them

    @classmethod
    def of(cls, sampling: Sequence[RowSampling] | None) -> Ending:
        """None: logits are needed."""
        if sampling is None:
            return cls.LOGITS
        return cls.GREEDY if all(row.greedy for row in sampling) else cls.SAMPLED
