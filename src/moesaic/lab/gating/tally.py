"""What a rule's outcomes add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt

from moesaic.lab.evaluation.scores import wilson
from moesaic.lab.gating.rules import Rule

_Z = 1.959964


@dataclass(slots=True)
class Tally:
    """The tally of one rule, over the same questions as every other."""

    right: int = 0
    asked: int = 0
    decoded: int = 0
    fallbacks: int = 0
    divergences: list[float] = field(default_factory=list)  # of every question, per token
    by_item: dict[str, bool] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.right += outcome.right
        self.asked += 1
        self.decoded += outcome.decoded
        self.fallbacks += outcome.fallbacks
        self.divergences.append(outcome.divergence / max(outcome.decoded, 1))
        self.by_item[outcome.item] = outcome.right

    @property
    def accuracy(self) -> float:
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, Wilson's."""
        return wilson(self.right, self.asked)

    @property
    def fallback_ratio(self) -> float:
        return self.fallbacks / self.decoded if self.decoded else 0.0

    @property
    def divergence(self) -> float:
        """Mean over questions of the mean over tokens, in nats."""
        return sum(self.divergences) / len(self.divergences)

    @property
    def divergence_bound(self) -> float:
        """The upper end of its 95 % interval, by the spread over questions."""
        count, mean = len(self.divergences), self.divergence
        spread = sum((each - mean) ** 2 for each in self.divergences) / max(count - 1, 1)
        return mean + _Z * sqrt(spread / count)

    def loss_interval(self, full: Tally) -> tuple[float, float, float]:
        """How much accuracy is lost against the full model, with its 95 % interval. The questions
        are the same, so only those count that one answers right and the other does not."""
        pairs = [(full.by_item[item], right) for item, right in self.by_item.items()]
        differences = [int(whole) - int(ours) for whole, ours in pairs]
        count = len(differences)
        mean = sum(differences) / count
        # Agresti and Min: half of a pseudo-question of each discordant kind keeps the interval
        # from closing where both models answer all alike.
        changed = sum(each != 0 for each in differences) + 1.0
        total = count + 2.0
        middle = sum(differences) / total
        width = _Z * sqrt(max(changed / total - middle**2, 0.0) / total)
        return mean, middle - width, middle + width


def tallies(outcomes: Iterable[Outcome]) -> dict[Rule, Tally]:
    found: dict[Rule, Tally] = {}
    for outcome in outcomes:
        found.setdefault(outcome.rule, Tally()).add(outcome)
    return found


# What came of one question under one rule.


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
