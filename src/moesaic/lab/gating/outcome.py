"""What came of one question under one rule."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.lab.gating.rules import Rule


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question under one rule."""

    item: str
    group: str
    rule: Rule
    right: bool
    answer: str
    tokens: tuple[int, ...]
    decoded: int  # tokens after the first, which the prompt's pass gives
    fallbacks: int
    divergence: float  # KL(full || gated) in nats, summed over decoded tokens; 0 if not measured
