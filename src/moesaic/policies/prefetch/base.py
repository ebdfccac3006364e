"""What a prefetch policy is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadPolicy
from moesaic.core.routing import ExpertId, Forecast
from moesaic.policies.belief import Belief
from moesaic.policies.rule_calls import Rule
from moesaic.policies.timelines import Ints


@dataclass(slots=True)
class Outlook:
    """What is known about the layers to come when one layer has been planned; times from now."""

    layer: int
    forecasts: tuple[Forecast, ...]  # nearest layer first
    resident: NDArray[np.uint8]
    coming: tuple[ExpertId, ...]  # under way
    expected_rule: int  # by which the schedule values a layer: an address, see rule_calls.py
    fills_timelines: bool  # it is `hybrid`'s, whose end has a bound
    belief: Belief
    lanes: Ints  # lanes of a later layer: everything free, dense work on the GPU first
    link_free_ns: int  # when the link has done what this layer demands
    starts: Ints  # per forecast, when its layer's experts are believed to start
    delays: Ints  # what 0, 1, 2, ... transfers from now on cost the next layer
    trust: tuple[float, ...]  # per forecast, the share of right ones at its distance so far
    miss_rate: float  # share of active experts that were not on the GPU so far


class Prefetch:
    """Proposes experts, best first; the brain finds them slots and drops what finds none.

    `lookahead` is how many layers ahead it wants forecasts for. A compiled policy names its
    `rule` (rule_calls.py); one in Python has none. `predicts`: where the body has no forecasts,
    they are predicted for it."""

    rule: Rule | None = None
    predicts: bool = True
    lookahead: int = 0
    read_ahead: int = 0  # experts of the next layer that idle CPU workers bring into their caches
    needs_future: bool = False

    def propose(self, outlook: Outlook) -> list[ExpertId]:
        raise BadPolicy(f"prefetch {type(self).__name__} must define propose, or name a `rule`")
