"""Do the simulator and the makespan model agree, and if not, why? A run by both, and what the
simulator's own plans are expected to take:

- `model`: the makespan model decides by itself, from the same layouts and routing;
- `plan`: the makespan, by equations 5 to 7, of the plans that the simulator executes. Where this is
  near 1 and `model` is not, the two bodies decide differently, mostly as moves arrive at other
  times; where this is away from 1, equations and simulated devices differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import MAKESPAN, PLANS, Run, Workload

BATCHES = (*sorted(paper.SMALL_BATCHES), *paper.BATCHES)
WORKS = (
    *(Workload(paper.QWEN, batch) for batch in BATCHES),
    Workload(paper.QWEN, 512, "steady"),
)
SYSTEMS = ("enhanced-ktransformers", "monde", "+refinement", paper.OURS, paper.BEYOND)
RULES = ("own-share", "none")
WAYS = {"model": MAKESPAN, "plan": PLANS}


def wanted() -> Iterator[Claim]:
    for work, rule, system, way in product(WORKS, RULES, SYSTEMS, WAYS):
        yield _row(Run(work, system, rule), way)


def _row(run: Run, way: str) -> Claim:
    other = replace(run, body=WAYS[way])
    name = f"check/{run.work.data}/{run.work.batch}/{run.system}/{way}@{run.rule}"

    def row(done: Done) -> Row:
        ours, theirs = outcome(done, other).layer_ms, outcome(done, run).layer_ms
        claim = f"MoE layer by the {WAYS[way]} over the simulator's, {run.system}"
        text = f"{ours:.3f} and {theirs:.3f} ms; {run.words}, and the same by the {WAYS[way]}"
        return Row(name, claim, None, ours / theirs, "x", text, again(name))

    return Claim(name, (other, run), row)
