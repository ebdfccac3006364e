"""Does `moesaic policies` list what the registries know?"""

from __future__ import annotations

from command import run, run_json

from moesaic.policies.cache import caches
from moesaic.policies.gate import gates
from moesaic.policies.layout import layouts
from moesaic.policies.policy_set import FILLS
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules
from moesaic.policies.systems import EVERY_SYSTEM


def test_json_holds_every_name_and_summary() -> None:
    listed = run_json("policies")
    for kind, registry in (
        ("schedules", schedules),
        ("caches", caches),
        ("prefetches", prefetches),
        ("gates", gates),
        ("layouts", layouts),
    ):
        found = {name: policy["summary"] for name, policy in listed[kind].items()}
        assert found == {name: registry.summary(name) for name in registry}
    assert listed["fills"] == FILLS
    assert list(listed["systems"]) == list(EVERY_SYSTEM)
    assert listed["systems"]["hybrimoe"]["schedule"] == "hybrid"
    assert listed["systems"]["ktransformers"]["prefill_schedule"] == "gpu-only"
    assert listed["systems"]["llama.cpp"]["cache"] == "pinned:pool=global"


def test_json_holds_every_parameter() -> None:
    caches_listed = run_json("policies")["caches"]
    assert caches_listed["mrs"]["parameters"]["alpha"] == {
        "type": "float",
        "default": 0.1,
        "allowed": "a number above 0 and at most 1",
        "meaning": "weight of the newest scores in the running one",
    }
    assert caches_listed["mrs"]["parameters"]["top_p"]["default"] is None
    pools = [policy["parameters"]["pool"] for policy in caches_listed.values()]
    assert {(pool["type"], pool["default"]) for pool in pools} == {("choice", "per-layer")}
    assert len(pools) == len(list(caches))


def test_tables_show_parameters_with_default_and_meaning() -> None:
    shown = run("policies").out
    rows = [[cell.strip() for cell in line.split("│")] for line in shown.splitlines()]
    rows = [row for row in rows if len(row) == 7]
    assert ["mrs", "alpha", "0.1"] in [row[1:4] for row in rows]
    assert ["impact", "lookahead", "3"] in [row[1:4] for row in rows]
    assert ["every cache", "pool", "per-layer"] in [row[1:4] for row in rows]


def test_tables_name_them_all() -> None:
    shown = run("policies").out
    assert all(name in shown for name in (*schedules, *caches, *prefetches, *FILLS, *EVERY_SYSTEM))


def test_simulate_help_offers_the_registered_names() -> None:
    shown = "".join(run("simulate", "--help-all").out.split())  # names may be broken over lines
    for name in (*schedules, *caches, *prefetches, *EVERY_SYSTEM):
        assert name in shown
