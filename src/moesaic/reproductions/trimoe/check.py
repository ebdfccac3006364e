"""Do the simulator and the makespan model agree? The same runs by both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.fig6 import SYSTEMS
from moesaic.reproductions.trimoe.runs import MAKESPAN, Run, Workload
from moesaic.reproductions.trimoe.wanted import Done, Wanted, again, outcome


def wanted() -> Iterator[Wanted]:
    for data, system in product(("chat", "steady"), SYSTEMS):
        yield _row(Run(Workload(paper.QWEN, 512, data), system))


def _row(run: Run) -> Wanted:
    model = replace(run, body=MAKESPAN)
    name = f"check/{run.work.data}/{run.system}"

    def row(done: Done) -> Row:
        ours, theirs = outcome(done, model).layer_ms, outcome(done, run).layer_ms
        claim = f"MoE layer by the makespan model over the simulator's, {run.system}"
        text = f"{ours:.3f} and {theirs:.3f} ms; {run.words}, and the same by the makespan model"
        return Row(name, claim, None, ours / theirs, "x", text, again(name))

    return Wanted(name, (model, run), row)
