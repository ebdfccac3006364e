"""The headline under several seeds of the routing: mean, least and largest speedup over the best
baseline, by model and batch, and of the batches' mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from statistics import fmean

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, Done, again
from moesaic.reproductions.trimoe.readings import MONDE, rivals
from moesaic.reproductions.trimoe.runs import Run, Workload

SEEDS = 5
RULES = ("own-share", "none")
DATA = {"skew": "chat", "classes": "three-classes"}
VALUES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "least": min,
    "largest": max,
}


def wanted(seeds: int = SEEDS) -> Iterator[Claim]:
    for rule, routing, layout, model in product(RULES, DATA, MONDE, paper.MODELS):
        for batches in (*((batch,) for batch in paper.BATCHES), paper.BATCHES):
            label = str(batches[0]) if len(batches) == 1 else "average"
            by_seed = [
                [
                    Cell.of(
                        Run(Workload(model, b, DATA[routing], seed=seed), paper.OURS, rule),
                        rivals(layout),
                    )
                    for b in batches
                ]
                for seed in range(seeds)
            ]
            name = f"seeds/{rule}/{routing}/{layout}/{model}/{label}"
            for value in VALUES:
                yield _row(f"{name}/{value}", value, by_seed, seeds)


def _row(name: str, value: str, by_seed: list[list[Cell]], seeds: int) -> Claim:
    def row(done: Done) -> Row:
        gains = [fmean(cell.speedup(done) for cell in cells) for cells in by_seed]
        run = by_seed[0][0].run
        claim = f"trimoe over the best baseline, {run.work.model}, {value} of {seeds} seeds"
        every = ", ".join(f"{gain:.2f}" for gain in gains)
        text = f"MoE layer in decode, seeds 0 to {seeds - 1}: {every}; {run.words}"
        if len(by_seed[0]) > 1:
            text += ", and the mean with the other batches"
        command = again(name) + (f" --seeds {seeds}" if seeds != SEEDS else "")
        return Row(name, claim, None, VALUES[value](gains), "x", text, command)

    return Claim(name, tuple(run for cells in by_seed for c in cells for run in c.items), row)
