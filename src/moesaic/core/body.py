"""The contract between the loop and a body that executes plans."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import LayerReport, StepReport
from moesaic.core.routing import LayerRouting
from moesaic.core.view import View


class Step(NamedTuple):
    """One forward pass to be done: how many tokens, and how many each of them looks back on."""

    phase: str  # "prefill" | "decode"
    tokens: int
    context: int  # tokens already in the KV cache, per sequence
    sequences: int = 1


class Body(Protocol):
    """A machine that lives in real or virtual time.

    Whoever has a step to do begins it in the body's own way; then the loop calls, for every MoE
    layer in order, `route`, `view`, `start`, `offer` and `wait`, and at the end `finish`. `probe`
    calls are allowed before the first step: they are how a brain learns what the machine costs."""

    def route(self, layer: int) -> LayerRouting:
        """Do everything up to and including the router of this layer."""
        ...

    def view(self, layer: int) -> View:
        """What is where now. It stays true until `start`, but for transfers under way, which may
        arrive: from `route` on, no other transfer begins."""
        ...

    def start(self, plan: LayerPlan, planning_ns: int) -> None:
        """Charge the time the decision took, then begin to execute it. A body in real time is
        given 0 and feels it itself."""
        ...

    def offer(self, background: tuple[Move, ...], lookahead_ns: int) -> None:
        """Transfers for idle link time, decided while the layer runs: they may begin
        `lookahead_ns` after the layer did. Forgotten when the next layer is routed."""
        ...

    def wait(self) -> LayerReport:
        """Until the layer has ended."""
        ...

    def finish(self) -> StepReport: ...

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        """Nanoseconds the device takes for so many experts of so many tokens each, which lie in
        its own memory or in the named placement."""
        ...

    def probe_transfer(self, link: str | None = None) -> int:
        """Nanoseconds one expert takes over the link (the first, unless named), alone."""
        ...


class Decider(Protocol):
    """What the loop asks of a brain, in this order, for every layer."""

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan: ...

    def look_ahead(self) -> tuple[Move, ...]: ...

    def learn(self, routing: LayerRouting, report: LayerReport) -> None: ...
