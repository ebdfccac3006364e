"""Figure 6: speedup of a MoE layer in decode, over Klotski and over the best baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import fmean

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, Done, again, outcome, over_best
from moesaic.reproductions.trimoe.runs import Run, Workload
from moesaic.reproductions.trimoe.sources import FIG_3, REAL_SKEW

SYSTEMS = (*paper.BASELINES, paper.OURS, paper.BEYOND)


def cells(
    model: str, rule: str, system: str = paper.OURS, data: tuple[str, ...] = tuple(FIG_3)
) -> list[Cell]:
    """All data sets and batches of a model."""
    works = [Workload(model, batch, name) for name, batch in product(data, paper.BATCHES)]
    return [Cell.of(Run(work, system, rule)) for work in works]


def wanted() -> Iterator[Claim]:
    for rule in paper.RULES:
        for which in ("least", "largest"):
            yield _extreme(which, rule)
        for model, title in paper.MODELS.items():
            claim = f"TriMoE over the best baseline, {title}, mean of data sets and batches"
            yield over_best(f"fig6/average/{model}@{rule}", claim, None, cells(model, rule))
            claim = f"tri-balanced over the best baseline, {title}, mean of data sets and batches"
            name = f"fig6/average/{model}/{paper.BEYOND}@{rule}"
            yield over_best(name, claim, None, cells(model, rule, paper.BEYOND))
        for model, data, batch in product(paper.MODELS, FIG_3, paper.BATCHES):
            yield from _bars(Workload(model, batch, data), rule)
    for model, title in paper.MODELS.items():
        real = cells(model, "own-share", data=(REAL_SKEW,))
        claim = f"TriMoE over the best baseline, {title}, at the skew of a real trace"
        yield over_best(f"fig6/real-skew/{model}@own-share", claim, None, real)


def _extreme(which: str, rule: str) -> Claim:
    """The least or the largest of the three models' averages."""
    name, stated = f"fig6/{which}@{rule}", paper.DECODE_SPEEDUP[which == "largest"]
    by_model = {model: cells(model, rule) for model in paper.MODELS}

    def row(done: Done) -> Row:
        means = {m: fmean(c.speedup(done) for c in found) for m, found in by_model.items()}
        model = (max if which == "largest" else min)(means, key=lambda m: means[m])
        claim = f"TriMoE over the best baseline, {which} of the three models' averages"
        text = f"{model}; {by_model[model][0].run.words}, and the other batches and data sets"
        return Row(name, claim, stated, means[model], "x", text, again(name))

    items = tuple(run for found in by_model.values() for cell in found for run in cell.items)
    return Claim(name, items, row)


def _bars(work: Workload, rule: str) -> Iterator[Claim]:
    base = Run(work, "klotski", rule)
    for system in SYSTEMS[1:]:
        run = replace(base, system=system)
        name = f"fig6/{work.model}/{work.data}/{work.batch}/{system}@{rule}"
        yield over_klotski(name, run, base)


def over_klotski(name: str, run: Run, base: Run) -> Claim:
    def row(done: Done) -> Row:
        ours, theirs = outcome(done, run).layer_ms, outcome(done, base).layer_ms
        work = run.work
        claim = f"{run.system} over Klotski, {work.model}, {work.data}, batch {work.batch}"
        text = f"MoE layer in decode: {ours:.3f} ms, Klotski {theirs:.3f}; {run.words}"
        return Row(name, claim, None, theirs / ours, "x", text, again(name))

    return Claim(name, (run, base), row)
