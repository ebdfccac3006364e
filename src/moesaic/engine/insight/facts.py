"""An insight as plain values, which travel to the server: numbers and names, no sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from moesaic.engine.run_stats import RunStats

Ran = Literal["gpu", "cpu", "link"]  # link: copied over it for this layer, then computed on the GPU
# Where an expert was when its layer was planned.
Place = Literal["accelerator", "coming", "host", "unknown"]
StepKind = Literal["decode", "prompt", "mixed"]


class ExpertFacts(NamedTuple):
    """One active expert of a layer. Costs are those that the brain planned with; None: not known,
    or no such device."""

    expert: int
    tokens: int
    ran: Ran
    place: Place
    arrives_ns: int  # coming: so long after the plan
    gpu_ns: int | None  # to compute it there, without bringing it
    cpu_ns: int | None


class PlannedLanes(NamedTuple):
    """The lanes as the brain saw them when it planned a layer, in nanoseconds from then, and what
    it believes that moves and a CPU's first expert cost."""

    gpu_free: int
    cpu_free: int
    link_free: int
    cpu_first: int
    transfer: int
    cpu_slowed: int  # thousandths, while the link is busy


class LayerFacts(NamedTuple):
    """One layer of the last step. `believed_ns` is the brain's estimate of what it planned; None:
    it made no plan for this layer, or its plan is not known."""

    layer: int
    measured_ns: int
    believed_ns: int | None
    active: int
    hits: int
    bytes_moved: int
    cpu_ns: int  # of its experts; 0: none, or not known
    experts: list[ExpertFacts]
    lanes: PlannedLanes | None


class StepFacts(NamedTuple):
    number: int  # since watching began
    kind: StepKind
    tokens: int
    sequences: int
    latency_ns: int
    executor: str
    layers: list[LayerFacts]


class HitFacts(NamedTuple):
    """Shares of the wanted experts that were held, in the latest steps."""

    window_steps: int
    actual: float | None  # None: no accelerator
    lru: float
    belady: float
    ratio: float  # of a layer's experts that the caches hold


class Conversation(NamedTuple):
    """One request, or what is kept of ended ones that nothing goes on from."""

    id: int  # the engine's number of the request; of what is kept, any number
    client: str
    state: Literal["running", "waiting", "kept"]
    blocks: int
    tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change from step to step."""

    model: str
    layers: int
    experts: int
    top_k: int
    shared_experts: bool
    expert_bytes: int
    expert_dtype: str
    executor: str
    why_layerwise: str | None
    accelerator: tuple[str, str] | None  # kind, name
    slots: int
    policies: dict[str, str]
    decides: bool  # whether the schedule weighs costs
    machine: str
    lanes: list[str]
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Insight:
    engine: EngineFacts
    stats: RunStats
    time_s: float
    step: StepFacts | None  # None: no step since watching began
    resident: list[list[int]]  # by layer
    hits: HitFacts | None
    conversations: list[Conversation]
    omitted_conversations: int = 0  # kept ones that are not listed
