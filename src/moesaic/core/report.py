"""What a machine did: one schema for real and virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

ENGINE = "engine"  # the lane of a real engine's main thread, or of its native conductor
AWAIT_PLAN, AWAIT_SUM = "await-plan", "await-sum"  # kinds: a captured step's GPU waits


class Span(NamedTuple):
    """One piece of work on one lane, [start_ns, end_ns) on the machine's clock. It is what the
    machine does in one go: where one call computes several experts, they share a span."""

    lane: str  # "gpu", "cpu", "pcie", ...
    kind: str  # "dense" | "expert" | "transfer" | "prefetch" | "plan"; of a simulated machine also
    # "kv", where the KV cache is in main memory; of a real engine's main
    # thread also "hand-over" | "start" | "look-ahead" | "sum"; of a captured step also "launch"
    # and "return" there, and "await-plan" | "await-sum" on the GPU
    start_ns: int
    end_ns: int
    layer: int  # -1 outside the MoE layers
    expert: int  # -1 where no expert is concerned, or several are
    tokens: int  # of several experts together, all of theirs
    experts: tuple[int, ...] = ()  # those of one call, where it may compute several

    @property
    def computed(self) -> tuple[int, ...]:
        """The experts of this span, one or several."""
        return self.experts or ((self.expert,) if self.expert >= 0 else ())


def experts_span(
    lane: str, start_ns: int, end_ns: int, layer: int, experts: tuple[int, ...], tokens: int
) -> Span:
    """One call that computed these experts."""
    only = experts[0] if len(experts) == 1 else -1
    return Span(lane, "expert", start_ns, end_ns, layer, only, tokens, experts)


class LayerReport(NamedTuple):
    """One executed layer; `start_ns` is when its experts began, after planning."""

    layer: int
    start_ns: int
    end_ns: int
    active: int  # experts with tokens
    hits: int  # of those, complete in GPU memory when the layer was planned
    bytes_moved: int  # over the link for this layer's own demand
    coming: int = 0  # experts with tokens that were under way when the layer was planned
    cpu_ns: int = 0  # that the CPU took for its experts; 0: it had none, or that is not known


class StepReport(NamedTuple):
    """One forward pass over one batch of tokens."""

    start_ns: int
    end_ns: int
    tokens: int
    layers: tuple[LayerReport, ...]

    @property
    def latency_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(slots=True)
class Timeline:
    """Every span of a run, for pictures and traces; recording can be switched off. `engine`: with
    the lane of a real engine's main thread, whose own times change a little by it."""

    enabled: bool = True
    spans: list[Span] = field(default_factory=list)
    engine: bool = False

    def add(self, span: Span) -> None:
        if self.enabled:
            self.spans.append(span)

    @property
    def lanes(self) -> list[str]:
        return list(dict.fromkeys(span.lane for span in self.spans))


def covered_ns(spans: Iterable[Span], start_ns: int, end_ns: int) -> int:
    """How much of an interval lies in at least one of the spans."""
    covered, free = 0, start_ns
    for span in sorted(spans, key=lambda s: s.start_ns):
        begin, end = max(span.start_ns, free), min(span.end_ns, end_ns)
        if begin < end:
            covered += end - begin
            free = end
    return covered


def busy_ns(spans: list[Span], lane: str) -> int:
    """Total time the lane worked (a lane never overlaps itself); waiting is not work."""
    worked = (s for s in spans if s.lane == lane and s.kind not in (AWAIT_PLAN, AWAIT_SUM))
    return sum(s.end_ns - s.start_ns for s in worked)
