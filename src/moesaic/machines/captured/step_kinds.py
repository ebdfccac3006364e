"""Which captured steps there are, what is kept of each, and the one under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch

from moesaic.machines.captured.decode_step import DecodeStep
from moesaic.machines.captured.step_ending import Ending
from moesaic.machines.captured.step_parts import Replayed

StepType = TypeVar("StepType", bound=DecodeStep)


@dataclass(frozen=True, slots=True)
class Captured(Generic[StepType]):
    step: StepType
    replayed: Replayed | None
    graphs: dict[Ending, torch.cuda.CUDAGraph] = field(default_factory=dict)


class StepKind(NamedTuple):
    """Steps that are captured apart: those that replay routing, and, where looking at them takes
    launches of their own, steps in which tokens use fewer experts (`gated`)."""

    replays: bool
    gated: bool


class DecodeKind(NamedTuple):
    """Which graph decodes: for how many tokens, and what it ends with."""

    size: int
    kind: StepKind
    ending: Ending


class DecodingStep(NamedTuple):
    """A step of decoded tokens under way."""

    kind: DecodeKind
    step: DecodeStep
    graph: torch.cuda.CUDAGraph
    tokens: int
    ended: torch.cuda.Event
