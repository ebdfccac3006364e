"""Figure 8: what the parts of TriMoE gain, one after another, at batch 512: from GPU and NDP
(MoNDE, which balances both; the paper says no more of its baseline) to a greedy schedule with the
CPU, to refinement, to relayout and rebalancing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from statistics import fmean

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import MAKESPAN, SIMULATOR, Run, Workload
from moesaic.reproductions.trimoe.systems import GREEDY

BATCH = 512
STAGES = {"gpu-ndp": "monde", "+cpu": "+cpu", "+refinement": "+refinement", "+relayout": "trimoe"}
DATA = ("chat", "code", "steady", "together", "slow-drift")


def wanted() -> Iterator[Claim]:
    for rule, data in product(paper.RULES, DATA):
        for before, after in pairwise(STAGES):
            ours, theirs = STAGES[after], STAGES[before]
            yield _gain(f"fig8/{data}/{after}@{rule}", after, ours, theirs, data, rule, SIMULATOR)
    for rule in paper.RULES:
        name = f"fig8/chat/+cpu-over-greedy@{rule}"
        yield _gain(name, "+cpu", "+cpu", GREEDY, "chat", rule, MAKESPAN)


def _gain(name: str, stage: str, ours: str, theirs: str, data: str, rule: str, body: str) -> Claim:
    works = [Workload(model, BATCH, data) for model in paper.MODELS]
    pairs = [(Run(w, ours, rule, body), Run(w, theirs, rule, body)) for w in works]

    def row(done: Done) -> Row:
        gains = [outcome(done, b).layer_ms / outcome(done, a).layer_ms for a, b in pairs]
        claim = f"gain of {stage} over the stage before it ({theirs})"
        text = f"mean over three models, {min(gains):.2f} to {max(gains):.2f}; {pairs[1][0].words}"
        stated = paper.ABLATION[stage]
        return Row(name, claim, stated, fmean(gains), "x", text, again(name))

    return Claim(name, tuple(run for pair in pairs for run in pair), row)
