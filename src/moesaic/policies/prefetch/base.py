"""What a prefetch policy is asked and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import ExpertId, Forecast
from moesaic.policies.belief import Belief
from moesaic.policies.timelines import Ints

MAX_PROPOSED = 4  # transfers proposed at once; the next layer proposes again
MOST_READ_AHEAD = 8  # experts
IMPACT_ROWS = 5  # of scratch, one number per expert each, to value the experts of a layer
PYTHON, NOTHING, NEXT_LAYER, IMPACT = -1, 0, 1, 2  # compiled rules, see brain/lookahead.py


@dataclass(slots=True)
class Outlook:
    """What is known about the layers to come when one layer has been planned; times from now."""

    layer: int
    forecasts: tuple[Forecast, ...]  # nearest layer first
    resident: NDArray[np.uint8]
    coming: tuple[ExpertId, ...]  # under way
    rule: int  # how the schedule values a layer, see schedule/base.py
    belief: Belief
    lanes: Ints  # lanes of a later layer: everything free, dense work on the GPU first
    link_free_ns: int  # when the link has done what this layer demands
    starts: Ints  # per forecast, when its layer's experts are believed to start
    delays: Ints  # what 0, 1, 2, ... transfers from now on cost the next layer
    trust: tuple[float, ...]  # per forecast, the share of right ones at its distance so far
    miss_rate: float  # share of active experts that were not on the GPU so far


class Prefetch(ABC):
    """Proposes experts, best first; the brain finds them slots and drops what finds none.

    `lookahead` is how many layers ahead it wants forecasts for. A compiled policy names its
    `rule`; one in Python leaves that as it is."""

    rule: int = PYTHON
    lookahead: int = 0
    read_ahead: int = 0  # experts of the next layer that idle CPU workers bring into their caches
    needs_future: bool = False

    @abstractmethod
    def propose(self, outlook: Outlook) -> list[ExpertId]: ...
