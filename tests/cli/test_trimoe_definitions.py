"""Are shares, utilisation, roofline points and overheads of the TriMoE reproduction what their
definitions say? On small cases, with the expected numbers written out.
Do sources with classes of experts give each class its share of the tokens?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from command import run

from dimm_machines import dimm_machine
from made_up import small_model
from moesaic.core.report import Span, Timeline
from moesaic.hardware.machine_reader import load_machine
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model
from moesaic.reproductions.trimoe import Reproduction, paper, seeds, simulated
from moesaic.reproductions.trimoe.claims import Cell, Claim
from moesaic.reproductions.trimoe.fig3 import token_shares
from moesaic.reproductions.trimoe.fig5 import busiest, tflops
from moesaic.reproductions.trimoe.fig7 import seconds
from moesaic.reproductions.trimoe.runs import MAKESPAN, STEPS, Outcome, Run, Workload, routed
from moesaic.reproductions.trimoe.sources import (
    DATA_SETS,
    level_weights,
    loads_of,
    synthetic_choices,
)
from moesaic.reproductions.trimoe.systems import SYSTEMS, policies_of
from moesaic.reproductions.trimoe.table import execute
from moesaic.workloads.synthetic.expert_loads import LoadProcess

SMALL = Workload(paper.QWEN, 32, layers=2)


def test_shares_of_tokens_are_by_rank() -> None:
    """Of twelve experts with 1 to 12 tokens, eight are cold (1 to 8), one is hot (12)."""
    loads = np.random.default_rng(0).permutation(np.arange(1, 13))
    found = token_shares(loads[np.newaxis])
    assert found["cold"] == pytest.approx(36 / 78)
    assert found["hot"] == pytest.approx(12 / 78)
    assert found["warm"] == pytest.approx(30 / 78)


def test_time_and_tokens_of_devices_are_those_of_their_experts() -> None:
    timeline = Timeline()
    timeline.add(Span("gpu", "dense", 0, 1000, 0, -1, 8))
    timeline.add(Span("gpu", "expert", 1000, 1100, 0, 3, 4))
    timeline.add(Span("pcie", "transfer", 1000, 1900, 0, 3, 0))
    timeline.add(Span("ndp0", "expert", 1000, 1050, 0, 4, 1))
    timeline.add(Span("ndp1", "expert", 1000, 1150, 0, 5, 3))
    took, tokens = simulated._computing(timeline, units=2)
    assert (took["gpu"], took["ndp"], took["pcie"]) == (100, 100, 0)
    assert (tokens["gpu"], tokens["ndp"]) == (4, 4)


def test_utilisation_by_operations_is_over_the_peak() -> None:
    """A GPU that took four times as long as its peak allows is used by a quarter; units count with
    all their multipliers."""
    model = small_model()
    machine = SimMachine(Physics(dimm_machine(), model), 4)
    spec, operations = machine.physics.machine, 2 * model.expert_params * 1000
    assert spec.ndp is not None
    on_gpu_ns = operations / (spec.gpu.matmul_tflops["bf16"] * 1e3)
    found = simulated._flops(machine, Counter(gpu=1000), 4 * on_gpu_ns)
    assert found == {"gpu": pytest.approx(0.25)}
    on_units_ns = operations / (spec.ndp.count * spec.ndp.tflops * 1e3)
    found = simulated._flops(machine, Counter(ndp=1000), 2 * on_units_ns)
    assert found == {"ndp": pytest.approx(0.5)}


def test_operations_of_all_devices_are_those_of_the_tokens() -> None:
    """Nothing is computed twice or left out: utilisations times peaks add up to the routing."""
    run = Run(SMALL, paper.OURS, timed=True)
    found = execute(run)
    machine = load_machine(paper.MACHINE)
    assert machine.ndp is not None
    peak = {
        "gpu": machine.gpu.matmul_tflops["bf16"],
        "cpu": machine.cpu.matmul_tflops["bf16"],
        "ndp": machine.ndp.tflops * machine.ndp.count,
    }
    model = SMALL.spec()
    done = sum(share * peak[name] for name, share in found.flops.items()) * 1e12
    asked = 2 * model.expert_params * SMALL.batch * model.top_k / (found.layer_ms / 1e3)
    assert done == pytest.approx(asked, rel=1e-9)
    assert all(0 <= share <= 1 for share in (*found.busy.values(), *found.experts.values()))
    assert len(found.spread) == STEPS


def test_roofline_points_by_hand() -> None:
    physics = Physics(load_machine(paper.MACHINE), load_model(paper.QWEN))
    weights = 3 * 4096 * 1536
    over_pcie = 2 * weights / (2 * weights / 64.0 + 2900) / 1e3
    assert tflops(physics, "gpu-pcie", 1) == pytest.approx(over_pcie, rel=1e-5)
    striped = 2 * weights / (2 * weights / (307.2 * 0.916) + 10_000) / 1e3
    assert tflops(physics, "cpu", 1) == pytest.approx(striped, rel=1e-5)
    localized = 2 * weights / (2 * weights / (38.4 * 0.916) + 10_000) / 1e3
    assert tflops(physics, "cpu-localized", 1) == pytest.approx(localized, rel=1e-5)
    assert tflops(physics, "ndp", 64) == pytest.approx(0.256, rel=0.01)
    assert tflops(physics, "ndp-all", 64) == pytest.approx(16 * tflops(physics, "ndp", 64))
    computing = 90.1 * 0.34
    assert tflops(physics, "cpu", 1024) == pytest.approx(computing, rel=0.02)


def test_the_busiest_unit_has_the_longest_sum() -> None:
    assert busiest(np.array([5.0, 4.0, 3.0, 3.0]), 2) == 8.0
    assert busiest(np.array([5.0, 4.0, 3.0, 3.0]), 1) == 15.0


def test_end_to_end_time_is_prompts_and_steps() -> None:
    found = Outcome(layer_ms=4.0, window_ms=1.0)
    assert seconds((2.0, 0.5), 10, found, 8) == pytest.approx(2.0 + 8 * (10 * 0.005 + 0.5))


def test_the_best_baseline_is_the_fastest() -> None:
    cell = Cell.of(Run(SMALL, paper.OURS))
    times = {"klotski": 9.0, "enhanced-ktransformers": 3.0, "monde": 4.0, "trimoe": 2.0}
    done = {run: Outcome(times[run.system], 0.0) for run in cell.items}
    assert cell.best(done).system == "enhanced-ktransformers"
    assert cell.speedup(done) == pytest.approx(1.5)


def test_moves_cost_nothing_where_there_are_none() -> None:
    steady = replace(SMALL, data="steady")
    still = execute(Run(steady, "monde", body=MAKESPAN))
    assert still.moves[1:] == (0.0, 0.0)
    moving = execute(Run(replace(SMALL, data="together"), paper.OURS, body=MAKESPAN))
    assert sum(moving.moves) > 0
    assert 0 <= moving.overhead < 0.5


def test_a_workload_is_the_same_for_every_system_and_body() -> None:
    profile, played = routed(SMALL)
    routed.cache_clear()
    again, replayed = routed(SMALL)
    assert (profile == again).all()
    assert all((a == b).all() for a, b in zip(played, replayed, strict=True))


def test_tokens_draw_different_experts_and_all_of_them() -> None:
    process = LoadProcess(2, 16, 4, batch=64, sigma=1.0, seed=3)
    for choices in process.choices(3):
        assert choices.shape == (2, 64, 4)
        assert (np.diff(np.sort(choices, axis=-1), axis=-1) > 0).all()
        assert (loads_of(choices, 16).sum(axis=-1) == 64 * 4).all()


@pytest.mark.parametrize("name", ["chat", "code", "real-skew"])
def test_synthetic_sources_have_the_skew_that_they_state(name: str) -> None:
    """Drawing whole tokens moves the share of cold experts a little; the row says what came out."""
    spec = replace(Workload(paper.QWEN, 512, layers=4).spec())
    steps = [loads_of(c, 128) for c in synthetic_choices(name, spec, 512, 6)]
    assert token_shares(np.stack(steps))["cold"] == pytest.approx(
        DATA_SETS[name].cold_tokens, rel=0.25
    )


LEVELS = ((0.1, 0.2), (0.3, 0.6), (0.6, 0.2))


def test_weights_are_those_of_the_probabilities() -> None:
    """Ten experts, top-2: the first is chosen by 0.4 of the tokens, three by 0.4 each, six by 1/15
    each."""
    weights = level_weights(LEVELS, 10, 2)
    assert 1 - np.exp(-weights) == pytest.approx([0.4] * 4 + [1 / 15] * 6)


def test_a_class_gets_its_share_of_the_tokens() -> None:
    spec = Workload(paper.QWEN, 512, layers=4).spec()
    steps = np.stack([loads_of(c, 128) for c in synthetic_choices("three-classes", spec, 512, 8)])
    ordered = np.sort(steps, axis=-1)[..., ::-1]
    total = ordered.sum()
    assert ordered[..., 38:].sum() / total == pytest.approx(0.08, abs=0.03)
    assert ordered[..., 2:38].sum() / total == pytest.approx(0.70, abs=0.06)


# Does the TriMoE reproduction show both readings of what the paper leaves open, and the spread
# over seeds, beside each other?


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
