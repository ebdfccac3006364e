"""Figure 6 under both readings of two things that the paper leaves open, beside each other:

- whether the near-data baseline has TriMoE's cut of experts into striped and localized ones (`cut`)
  or all of them in single DIMMs (`localized`);
- whether routing has only the share that cold experts get in Fig. 3 (`skew`) or also the shares of
  warm and hot ones (`classes`).

Klotski is left out: it is never the best baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import fmean

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper, sensitivity
from moesaic.reproductions.trimoe.claims import Cell, Claim, Done, again, over_best
from moesaic.reproductions.trimoe.runs import Run, Workload

ROUTINGS = {"skew": ("chat", "code"), "classes": ("three-classes", "three-classes-code")}
MONDE = {"cut": "monde", "localized": paper.LOCALIZED}
ONE_CANDIDATE = "trimoe-one-candidate"
# Rows of `sensitivity`, with all experts of MoNDE in single DIMMs.
LOCALIZED_CHOICES = ("base", "skew=classes", "skew=classes,contention=none", "as-in-the-equations")
# And with a refinement that ends when the bottleneck's most expensive expert has to stay.
REFINED_CHOICES = ("base", "skew=classes", "as-in-the-equations")
LEAST_FIRST = "trimoe-least-first"
# And with one that tries equally expensive experts from the fewest tokens on.
LEAST_FIRST_CHOICES = (
    "base", "contention=full", "contention=none", "skew=classes", "skew=classes,contention=none",
    "as-in-the-equations",
)  # fmt: skip


def rivals(layout: str) -> tuple[str, ...]:
    return ("enhanced-ktransformers", MONDE[layout])


def cells(model: str, routing: str, layout: str, rule: str, system: str) -> list[Cell]:
    works = [Workload(model, b, data) for data, b in product(ROUTINGS[routing], paper.BATCHES)]
    return [Cell.of(Run(work, system, rule), rivals(layout)) for work in works]


def wanted() -> Iterator[Claim]:
    for routing, layout, system in product(ROUTINGS, MONDE, (paper.OURS, paper.BEYOND)):
        for rule in paper.RULES:
            prefix = f"readings/{routing}/{layout}/{system}"
            for model, title in paper.MODELS.items():
                claim = f"{system} over the best baseline, {title}, mean of data sets and batches; "
                claim += f"routing {routing}, MoNDE {layout}"
                found = cells(model, routing, layout, rule, system)
                yield over_best(f"{prefix}/{model}@{rule}", claim, None, found)
            for which in ("least", "largest"):
                yield _extreme(prefix, which, (routing, layout, rule, system))
    yield from _sensitivity()


def _extreme(prefix: str, which: str, reading: tuple[str, str, str, str]) -> Claim:
    """The least or the largest of the three models' averages."""
    routing, layout, rule, system = reading
    name = f"{prefix}/{which}@{rule}"
    stated = paper.DECODE_SPEEDUP[which == "largest"] if system == paper.OURS else None
    by_model = {model: cells(model, *reading) for model in paper.MODELS}

    def row(done: Done) -> Row:
        means = {m: fmean(c.speedup(done) for c in found) for m, found in by_model.items()}
        model = (max if which == "largest" else min)(means, key=lambda m: means[m])
        claim = f"{system} over the best baseline, {which} of the three models' averages; "
        claim += f"routing {routing}, MoNDE {layout}"
        text = f"{model}; {by_model[model][0].run.words}, and the other batches and data sets"
        return Row(name, claim, stated, means[model], "x", text, again(name))

    return Claim(name, tuple(r for found in by_model.values() for c in found for r in c.items), row)


def _sensitivity() -> Iterator[Claim]:
    for name, system in product(LOCALIZED_CHOICES, (paper.OURS, paper.BEYOND)):
        words, run = sensitivity.CHOICES[name]
        claim = f"{system} over the best baseline: {words}; all of MoNDE's experts localized"
        cell = Cell.of(replace(run, system=system), rivals("localized"))
        yield over_best(f"sensitivity/{name},monde=localized/{system}", claim, None, [cell])
    for name in REFINED_CHOICES:
        words, run = sensitivity.CHOICES[name]
        claim = f"trimoe over the best baseline: {words}; the refinement ends when the most "
        claim += "expensive expert of the bottleneck has to stay"
        cell = Cell.of(replace(run, system=ONE_CANDIDATE))
        yield over_best(f"sensitivity/{name},one-candidate/{paper.OURS}", claim, None, [cell])
    for name in LEAST_FIRST_CHOICES:
        words, run = sensitivity.CHOICES[name]
        claim = f"trimoe over the best baseline: {words}; the refinement tries equally expensive "
        claim += "experts from the fewest tokens on"
        cell = Cell.of(replace(run, system=LEAST_FIRST))
        yield over_best(f"sensitivity/{name},least-first/{paper.OURS}", claim, None, [cell])
