"""What moves experts at run time: the paper's classes (section 4.3) against the smooth makespan,
under both schedules, over a layout that only exchanges what is in GPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import Run, Workload

DATA = ("chat", "code", "steady", "together", "slow-drift", "three-classes")
BATCH = 512
STILL = "+refinement"  # TriMoE without relayout and rebalancing
RULES = {  # system -> what it is over TriMoE without relayout and rebalancing
    "trimoe": "trimoe, moves by the paper's classes",
    "trimoe-smooth": "trimoe, moves by the smooth makespan",
    "tri-balanced": "tri-balanced, moves by the paper's classes",
    "tri-balanced-smooth": "tri-balanced, moves by the smooth makespan",
}


def wanted() -> Iterator[Claim]:
    for data, rule, system in product(DATA, paper.RULES, RULES):
        yield _row(Run(Workload(paper.QWEN, BATCH, data), system, rule))


def _row(run: Run) -> Claim:
    base = Run(run.work, STILL, run.rule)
    name = f"migration/{run.work.data}/{run.system}@{run.rule}"

    def row(done: Done) -> Row:
        ours, theirs = outcome(done, run).layer_ms, outcome(done, base).layer_ms
        claim = f"{RULES[run.system]}: over trimoe without relayout and rebalancing"
        text = f"MoE layer in decode: {ours:.3f} ms, without {theirs:.3f}; {run.words}"
        return Row(name, claim, None, theirs / ours, "x", text, again(name))

    return Claim(name, (run, base), row)
