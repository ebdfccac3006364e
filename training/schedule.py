"""How learning rates go with a run's progress, and what progress is."""

from __future__ import annotations

from dataclasses import dataclass

from training.recipe import Learning


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's length in steps or, where `minutes` is given, in time: whatever a machine's speed,
    rates have then come down when the time is over. Only steps make a run repeatable."""

    steps: int
    minutes: float | None = None

    def progress(self, step: int, seconds: float) -> float:
        """From 0 to 1, after so many steps that took so many seconds of training."""
        done = step / self.steps if self.minutes is None else seconds / (60 * self.minutes)
        return min(done, 1.0)


def rate_factor(progress: float, learning: Learning) -> float:
    """Up, level, down: a trapezoid."""
    rising = (progress + 1e-4) / learning.warm_up if learning.warm_up else 1.0
    falling = (1 - progress) / learning.decay if learning.decay else 1.0
    return max(0.0, min(1.0, rising, falling))
