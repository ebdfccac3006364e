"""How much may be lost: a number of points of exact match, or a divergence in nats."""

from __future__ import annotations

import re
from dataclasses import dataclass

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.gating.tally import Tally

_POINTS = re.compile(
    r"^(at most\s+)?(\d+(?:\.\d+)?)\s*(points?|pp|%)?(\s+(of\s+)?exact[ -]match)?$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Bound:
    """Exactly one of the two. `sure`: the upper end of the 95 % interval must keep it, not the
    measured value alone."""

    points: float | None = None  # percentage points of exact match
    kl: float | None = None  # mean KL(full || gated), nats per token
    sure: bool = False

    def loss(self, tally: Tally, full: Tally) -> float:
        """What is compared with the bound, in its unit."""
        if self.points is not None:
            mean, _, high = tally.loss_interval(full)
            return 100 * (high if self.sure else mean)
        return tally.divergence_bound if self.sure else tally.divergence

    def kept(self, tally: Tally, full: Tally) -> bool:
        limit = self.points if self.points is not None else self.kl
        assert limit is not None, "a bound has a limit"
        return self.loss(tally, full) <= limit + 1e-12

    def words(self) -> str:
        end = ", at the upper end of the 95 % interval" if self.sure else ", as measured"
        if self.points is not None:
            unit = "point" if self.points == 1 else "points"
            return f"at most {self.points:g} {unit} of exact match{end}"
        return f"a KL divergence of at most {self.kl:g} nats per token{end}"


def read_bound(points: str | None, kl: float | None, sure: bool) -> Bound:
    if (points is None) == (kl is None):
        raise ImpossibleSetting(
            'give one bound: --bound "1 point exact match", for prompts with answers, or --max-kl '
            "0.01, for any prompts"
        )
    if points is None:
        assert kl is not None, "one of the two was given"
        if not kl > 0:
            raise ImpossibleSetting(f"--max-kl is {kl:g}; a divergence bound must be above 0")
        return Bound(kl=kl, sure=sure)
    found = _POINTS.match(points.strip())
    if found is None:
        raise ImpossibleSetting(
            f'--bound {points!r} is not understood: write it as "1 point exact match", a number of '
            "percentage points"
        )
    return Bound(points=float(found[2]), sure=sure)
