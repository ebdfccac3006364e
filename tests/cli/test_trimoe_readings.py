"""Does the TriMoE reproduction show both readings of what the paper leaves open, and the spread
over seeds, beside each other?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from command import run

from moesaic.reproductions.trimoe import Reproduction, paper, seeds
from moesaic.reproductions.trimoe.fig3 import token_shares
from moesaic.reproductions.trimoe.runs import Outcome, Run, Workload
from moesaic.reproductions.trimoe.sources import loads_of, synthetic_choices
from moesaic.reproductions.trimoe.systems import SYSTEMS, policies_of
from moesaic.reproductions.trimoe.wanted import Claim


def wanted_of(only: str, count: int = seeds.SEEDS) -> dict[str, Claim]:
    return {each.id: each for each in Reproduction(only, seeds=count)._wanted}


def test_every_reading_is_there() -> None:
    every = wanted_of("readings")
    readings = product(("skew", "classes"), ("cut", "localized"), ("trimoe", "tri-balanced"))
    for (routing, layout, system), rule in product(readings, paper.RULES):
        for last in (*paper.MODELS, "least", "largest"):
            assert f"readings/{routing}/{layout}/{system}/{last}@{rule}" in every
    choices = wanted_of("sensitivity")
    assert "sensitivity/skew=classes,monde=localized/trimoe" in choices
    assert "sensitivity/as-in-the-equations,one-candidate/trimoe" in choices
    for system, rule in product(("trimoe", "trimoe-smooth", "tri-balanced"), paper.RULES):
        assert f"migration/chat/{system}@{rule}" in wanted_of("migration")


@pytest.mark.parametrize(("layout", "monde"), [("cut", "monde"), ("localized", paper.LOCALIZED)])
def test_a_reading_compares_with_its_baselines(layout: str, monde: str) -> None:
    row = wanted_of(f"readings/classes/{layout}/trimoe/{paper.QWEN}@none")
    (reading,) = row.values()
    systems = {each.system for each in reading.items}
    assert systems == {"trimoe", "enhanced-ktransformers", monde}
    assert {each.work.data for each in reading.items} == {"three-classes", "three-classes-code"}
    done = {each: Outcome({"trimoe": 2.0, monde: 5.0}.get(each.system, 8.0), 0.0, spread=(1.0,))
            for each in reading.items}  # fmt: skip
    assert reading.row(done).ours == pytest.approx(2.5)


def test_layouts_and_rules_of_variants_differ_in_one_setting() -> None:
    policies = {name: str(policies_of(Run(Workload(paper.QWEN, 8), name))) for name in SYSTEMS}
    assert policies["monde-localized"] != policies["monde"]
    assert policies["monde-localized"].replace(",offline=localized", "") == policies["monde"]
    smooth = policies["trimoe-smooth"].replace(":rule=smooth-makespan", "")
    assert smooth == policies["trimoe"]
    assert policies["trimoe-one-candidate"].replace(":candidates=1", "") == policies["trimoe"]


def test_seeds_draw_other_routing_with_the_same_skew() -> None:
    spec = replace(Workload(paper.QWEN, 256).spec())
    drawn = [next(synthetic_choices("three-classes-code", spec, 256, 1, seed)) for seed in (0, 1)]
    assert (drawn[0] != drawn[1]).any()
    for choices in drawn:
        shares = token_shares(loads_of(choices, 128))
        assert shares["cold"] == pytest.approx(0.065, rel=0.35)
        assert shares["warm"] > 0.4
    again = next(synthetic_choices("three-classes-code", spec, 256, 1, 1))
    assert (again == drawn[1]).all()
    assert "seed 1" in Workload(paper.QWEN, 8, seed=1).words
    assert "seed" not in Workload(paper.QWEN, 8).words


def test_a_spread_is_over_the_seeds_means_of_batches() -> None:
    """Two seeds: speedups 2 and 3, at every batch."""
    rows = wanted_of(f"seeds/none/skew/cut/{paper.QWEN}/average", 2)
    assert len(rows) == 3
    found = {}
    for name, each in rows.items():
        runs = [item for item in each.items if isinstance(item, Run)]
        assert {item.work.seed for item in runs} == {0, 1}
        assert {item.work.batch for item in runs} == set(paper.BATCHES)
        times = {
            item: 2.0 if item.system == "trimoe" else 4.0 + 2 * item.work.seed for item in runs
        }
        row = each.row({item: Outcome(ms, 0.0) for item, ms in times.items()})
        assert row.command.endswith("--seeds 2")
        found[name.rpartition("/")[2]] = row.ours
    assert found == {"mean": np.mean([2, 3]), "least": 2, "largest": 3}


def test_the_number_of_seeds_is_an_option() -> None:
    assert "--seeds" in run("reproduce", "trimoe", "--help").out


@pytest.mark.parametrize("way", ["main", "fits"])
def test_the_headline_is_on_the_card_that_the_paper_has(way: str) -> None:
    """Under every reading; where no expert fits beside the KV cache, that batch is left out."""
    rows = wanted_of(f"headline/{way}/")
    assert len(rows) == 2 * 2 * 2 * len(paper.MODELS)
    runs = {item for row in rows.values() for item in row.items if isinstance(item, Run)}
    assert {run.gpu_memory_gb for run in runs} == {None}
    assert {run.kv_cache for run in runs} == {"main" if way == "main" else "gpu"}
    batches = {run.work.batch for run in runs if run.work.model == paper.QWEN}
    assert batches == ({256, 512, 768} if way == "main" else {256, 512})
