"""The headline on the paper's card of 80 GB under every reading: with the KV cache in main memory,
as the paper has it, and with what fits beside a KV cache in GPU memory. `readings` has the same on
an imagined card that holds everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from moesaic.machines.sim.kv_cache import READ_OVER_PCIE
from moesaic.reproductions.trimoe import memory, paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, over_best
from moesaic.reproductions.trimoe.readings import MONDE, ROUTINGS, rivals
from moesaic.reproductions.trimoe.runs import Workload

WAYS = (READ_OVER_PCIE, memory.FITS)
RULES = ("own-share", "none")


def cells(way: str, model: str, routing: str, layout: str, rule: str) -> list[Cell]:
    """The cells of all data sets and batches; without those for which no expert fits in GPU
    memory."""
    works = [Workload(model, b, data) for data, b in product(ROUTINGS[routing], paper.BATCHES)]
    runs = [memory.run_of(way, work) for work in works]
    return [Cell.of(replace(run, rule=rule), rivals(layout)) for run in runs if run is not None]


def wanted() -> Iterator[Claim]:
    for way, routing, layout, rule in product(WAYS, ROUTINGS, MONDE, RULES):
        for model, title in paper.MODELS.items():
            found = cells(way, model, routing, layout, rule)
            claim = f"trimoe over the best baseline, {title}, mean of data sets and batches; "
            claim += f"routing {routing}, MoNDE {layout}; {memory.WAYS[way]}"
            name = f"headline/{way}/{routing}/{layout}/{model}@{rule}"
            yield over_best(name, claim, None, found)
