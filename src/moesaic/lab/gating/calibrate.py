"""Which threshold keeps a bound on prompts of one's own, at the least cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.loading import LoadedModel
from moesaic.lab.evaluation.items import Question
from moesaic.lab.gating.bound import Bound
from moesaic.lab.gating.forked import ForkedDecoding
from moesaic.lab.gating.rules import Rule, full_rule
from moesaic.lab.gating.tally import Tally, tallies
from moesaic.policies.quality_levels import FORMAT

GAMMAS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)


def candidates(top_k: int, measures: Sequence[str]) -> list[Rule]:
    """Little models of a quarter, a half and three quarters of top-k experts, without fallbacks
    and with every threshold of every measure."""
    sizes = sorted({round(top_k * share) for share in (0.25, 0.5, 0.75)} - {0, top_k})
    found = [Rule(k, 0.0) for k in sizes]
    return found + [Rule(k, gamma, each) for k in sizes for each in measures for gamma in GAMMAS]


@dataclass(frozen=True, slots=True)
class Candidate:
    rule: Rule
    tally: Tally
    reads: float  # expert reads per token over the full model's, by MoBiLE's equation 1
    loss: float  # in the bound's unit
    kept: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """All candidates, cheapest first; `chosen` is the cheapest that keeps the bound."""

    model: str
    bound: Bound
    prompts: int
    full: Tally
    candidates: tuple[Candidate, ...]
    chosen: Candidate

    def as_file(self, prompts: str, command: str) -> dict[str, Any]:
        """What `--quality FILE` reads: `gate`, `model`, `cost` and `measured_on`; the rest is for
        people."""
        return {
            "format": FORMAT,
            "model": self.model,
            "gate": self.chosen.rule.gate,
            "cost": self.cost(),
            "measured_on": f"{self.prompts} prompts of {prompts}",
            "bound": self.bound.words(),
            "command": command,
            "measured": _measured(self.chosen, self.full, self.bound),
        }

    def cost(self) -> str:
        tally = self.chosen.tally
        again = f"{tally.fallback_ratio:.1%} of tokens run again"
        if self.bound.points is None:
            return f"KL {tally.divergence:.4g} nats per token, {again}"
        mean, low, high = tally.loss_interval(self.full)
        return (
            f"{100 * mean:.1f} of {100 * self.full.accuracy:.1f} points of exact match lost "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f}), {again}"
        )


def calibrate(
    model: LoadedModel,
    questions: Sequence[Question],
    bound: Bound,
    measures: Sequence[str],
    advance: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Raises ImpossibleSetting where nothing cheaper than the full model keeps the bound, or where
    no loss could be seen."""
    top_k = model.spec.top_k
    rules = candidates(top_k, measures)
    if not rules:
        raise ImpossibleSetting(
            f"{model.spec.name} uses {top_k} expert per token: there is no smaller model in it"
        )
    study = ForkedDecoding(model, rules, follow=bound.kl is not None)
    found = tallies(study.run(questions, advance))
    full = found.pop(full_rule(top_k))
    if bound.points is not None and not full.accuracy:
        raise ImpossibleSetting(
            f"the full model answers none of these {full.asked} prompts right, so that nothing "
            "can be lost: give prompts that it can answer, or bound the divergence with --max-kl"
        )
    several = [_candidate(rule, tally, full, bound, top_k) for rule, tally in found.items()]
    several.sort(key=lambda each: (each.reads, each.loss))
    cheaper = [each for each in several if each.kept and each.reads < 1.0]
    if not cheaper:
        raise _nothing(several, full, bound, len(questions))
    name = model.spec.name
    return Calibration(name, bound, len(questions), full, tuple(several), cheaper[0])


def _candidate(rule: Rule, tally: Tally, full: Tally, bound: Bound, top_k: int) -> Candidate:
    reads = rule.k / top_k + tally.fallback_ratio
    return Candidate(rule, tally, reads, bound.loss(tally, full), bound.kept(tally, full))


def _nothing(
    several: Sequence[Candidate], full: Tally, bound: Bound, prompts: int
) -> ImpossibleSetting:
    cheaper = [each for each in several if each.reads < 1.0]
    best = min(cheaper or several, key=lambda each: each.loss)
    unit = "points" if bound.points is not None else "nats"
    hint = "allow that much, or use the full model (--quality strict)"
    if bound.sure:
        hint += "; more prompts make the interval narrower"
    return ImpossibleSetting(
        f"no threshold that reads fewer experts than the full model keeps {bound.words()}, on "
        f"{prompts} prompts: the best, {best.rule.gate}, has {best.loss:.3g} {unit}: {hint}"
    )


def _measured(chosen: Candidate, full: Tally, bound: Bound) -> dict[str, Any]:
    tally = chosen.tally
    found: dict[str, Any] = {
        "prompts": tally.asked,
        "tokens": tally.decoded,
        "fallback_ratio": tally.fallback_ratio,
        "expert_reads_over_full": chosen.reads,
    }
    if bound.points is None:
        return found | {"kl": tally.divergence, "kl_upper": tally.divergence_bound}
    mean, low, high = tally.loss_interval(full)
    return found | {
        "exact_match": tally.accuracy,
        "exact_match_full": full.accuracy,
        "points_lost": 100 * mean,
        "points_lost_interval": [100 * low, 100 * high],
    }
