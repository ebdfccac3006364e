"""What layers with a window or a state hold of a sequence at one length, in host memory: a sequence
that begins with the same tokens goes on from there."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.models.attentions.recurrent_buffer import SavedState
from moesaic.models.attentions.window_buffer import SavedWindow


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """By layer."""

    length: int  # tokens
    windows: dict[int, SavedWindow]
    states: dict[int, SavedState]

    @property
    def nbytes(self) -> int:
        windows = sum(each.nbytes for each in self.windows.values())
        return windows + sum(each.nbytes for each in self.states.values())
