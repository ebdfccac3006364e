"""Are both bodies compared on every simulated run that a conclusion about TriMoE rests on?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.runs import MAKESPAN, Outcome, Run, Workload
from moesaic.reproductions.trimoe.spread import PARTS, compared, named, wanted
from moesaic.reproductions.trimoe.table import Reproduction
from moesaic.reproductions.trimoe.wanted import Cell, over_best


def test_every_simulated_run_is_compared() -> None:
    rows = Reproduction()._wanted
    (every,) = (row for row in rows if row.id == "spread/all/least")
    found = {(run.work, run.system, run.rule, run.changes) for run in every.items}
    for row in rows:
        if row.id.startswith(PARTS):
            for run in row.items:
                if compared(run):
                    assert (run.work, run.system, run.rule, run.changes) in found, row.id
    assert len(every.items) == 2 * sum(run.body == MAKESPAN for run in every.items)
    groups = {row.id.split("/")[1] for row in rows if row.id.startswith("spread/")}
    parts = ("fig6", "readings", "migration", "fig8", "fig9", "sec5.5")
    figures = {f"{part}@{rule}" for part in parts for rule in paper.RULES}
    figures |= {"headline@own-share", "headline@none"}
    figures |= {f"{size}-batches:trimoe" for size in ("small", "large")}
    assert figures <= groups


def test_the_spread_names_what_is_furthest_apart() -> None:
    run = Run(Workload(paper.QWEN, 256), paper.OURS)
    row = over_best("fig6/x", "x", None, [Cell.of(run)])
    ratios = dict(zip(Cell.of(run).items, (0.75, 1.01, 1.0, 1.13), strict=True))
    every = [each for each in wanted([row]) if each.id.startswith("spread/all")]
    least = every[0]
    done = {
        each: Outcome(ratios[_simulated(each)] if each.body == MAKESPAN else 1.0, 0.5)
        for each in least.items
    }
    found = [each.row(done) for each in every]
    assert [each.ours for each in found] == pytest.approx([0.75, 1.005, 1.13, 0.5, 4])
    assert f"furthest apart: {named(run)} 0.750" in found[0].conditions


def _simulated(run: Run) -> Run:
    return Run(run.work, run.system)


def test_a_kv_cache_in_main_memory_has_no_second_body() -> None:
    run = Run(Workload(paper.QWEN, 256), paper.OURS)
    assert compared(run)
    assert not compared(replace(run, kv_cache="main"))
    assert not compared(replace(run, body=MAKESPAN))
