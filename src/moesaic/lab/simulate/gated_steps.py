"""A trace's steps as a gate lets them run: tokens use fewer experts where it says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moesaic.policies.gate.base import Gate, GateStep
from moesaic.workloads.steps import StepRouting


def gated(steps: Iterable[StepRouting], gate: Gate) -> Iterator[StepRouting]:
    """First attempts only: every token stands."""
    for step in steps:
        prompt = step.phase == "prefill"
        asked = GateStep.of_prompt(step.tokens) if prompt else GateStep.decode(step.tokens)
        counts = gate.experts_per_token(asked)
        yield step if counts is None else step.cut(counts)
