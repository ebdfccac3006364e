"""The contract between a brain and a body that executes its plans.

A `Body` runs one whole forward pass and asks the brain on the way. How is its own business: a
`LayerwiseBody` is driven layer by layer from Python (`machines/loop.py`), a machine with a
native loop need not be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from moesaic.core.capabilities import Capabilities
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import LayerReport, StepReport
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View

# What a body is given to do: a step, and where its routing or its network comes from.
Work_contra = TypeVar("Work_contra", contravariant=True)


class Decider(Protocol):
    """What a body asks of a brain, in this order, for every layer. A wrapper that
    forwards every call can record a step layer by layer."""

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan: ...

    def wants_forecasts(self) -> int:
        """The number of layers after the one decided whose forecasts are of use now; 0: they could
        move nothing. Only a body that can forecast asks."""
        ...

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        """What to move in idle link time, with the forecasts it wanted."""
        ...

    def learn(self, routing: LayerRouting, report: LayerReport) -> None: ...


class Probed(Protocol):
    """How a brain learns what a machine costs, before the first step."""

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        """Nanoseconds the device takes for so many experts of so many tokens each, which lie in
        its own memory or in the named placement, alone."""
        ...

    def probe_slowdown(self, device: str) -> int:
        """Thousandths that experts of one token take longer there while the first link copies."""
        ...

    def probe_transfer(self, link: str | None = None) -> int:
        """Nanoseconds one expert takes over the link (the first, unless named), alone."""
        ...


class Body(Probed, Protocol[Work_contra]):
    """A machine in real or virtual time."""

    @property
    def capabilities(self) -> Capabilities: ...

    def step(self, work: Work_contra, brain: Decider) -> StepReport:
        """One whole forward pass. A step that fails or is interrupted is given up; the next one
        begins as if it had not been."""
        ...


class LayerBody(Protocol):
    """What executes one layer after another that was routed: `view`, `start`, `forecasts`, `offer`
    and `wait`, in this order (`machines/loop.py`)."""

    def view(self, layer: int) -> View:
        """What is where now. It stays true until `start`, but for transfers under way, which may
        arrive: from the router on, no other transfer begins."""
        ...

    def start(self, plan: LayerPlan) -> None:
        """Begin to execute a decision. In virtual time the body charges what deciding costs
        first; in real time that has passed by itself."""
        ...

    @property
    def prefetches(self) -> bool:
        """Whether anything could be moved ahead in this step."""
        return True

    @property
    def can_forecast(self) -> bool:
        """Whether `forecasts` has anything to say about the layers after this one."""
        ...

    def forecasts(self, depth: int) -> Sequence[Forecast]:
        """What up to `depth` layers after the one routed last will choose, nearest first. Asked
        only where they are of use."""
        ...

    def offer(self, background: tuple[Move, ...]) -> None:
        """Transfers for idle link time, decided while the layer runs: they may begin when the
        look-ahead that chose them is over. Dropped when the next layer is routed."""
        ...

    def wait(self) -> LayerReport:
        """Wait until the layer has ended."""
        ...


class LayerwiseBody(LayerBody, Protocol):
    """A body whose step is driven from outside: after it was begun in the body's own way, every
    MoE layer in order is routed and served; at the end `finish`."""

    def route(self, layer: int) -> LayerRouting:
        """Do everything up to and including the router of this layer."""
        ...

    def finish(self) -> StepReport: ...
