"""How a pass is watched: an executor shows what was routed and decided, and goes on as without."""

from __future__ import annotations

from typing import Protocol

from moesaic.core.body import Decider
from moesaic.core.routing import LayerRouting


class StepWatch(Protocol):
    """Called in the thread that drives the pass. Machines have none unless one was set, and then
    for as long as it stays."""

    def around(self, brain: Decider) -> Decider:
        """What is asked instead of the brain, layer by layer: it forwards every call."""
        ...

    def routed(self, routing: LayerRouting) -> None:
        """A layer whose brain was not asked, since there is nothing to decide."""
        ...
