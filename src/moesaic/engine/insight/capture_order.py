"""What is captured of the next steps, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moesaic.core.errors import ImpossibleSetting

CaptureKind = Literal["perfetto", "routing"]
MOST_STEPS = 1000


@dataclass(frozen=True, slots=True)
class CaptureOrder:
    kind: CaptureKind
    steps: int

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MOST_STEPS:
            raise ImpossibleSetting(
                f"steps is {self.steps}; a capture has between 1 and {MOST_STEPS} of them"
            )
