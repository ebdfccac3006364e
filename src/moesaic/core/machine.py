"""The contract between the loop and a body that executes plans."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from moesaic.core.plan import LayerPlan
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
    layer in order, `route`, `view` and `run`, and at the end `finish`. Time passes in `route`,
    `run` and `finish` only. `probe` calls are allowed before the first step: they are how a
    brain learns what the machine costs."""

    def route(self, layer: int) -> LayerRouting:
        """Do everything up to and including the router of this layer."""
        ...

    def view(self, layer: int) -> View: ...

    def run(self, plan: LayerPlan, planning_ns: int, lookahead_ns: int = 0) -> LayerReport:
        """Charge the planning time, then execute the plan to the end of the layer.

        What to move in the background is decided while the layer runs: those transfers can
        start `lookahead_ns` later. A body in real time is given zeros and feels it itself."""
        ...

    def finish(self) -> StepReport: ...

    def probe(self, device: str, tokens: int, experts: int) -> int:
        """Nanoseconds the device takes for so many experts of so many tokens each."""
        ...

    def probe_transfer(self) -> int:
        """Nanoseconds one expert takes over the link, alone."""
        ...
