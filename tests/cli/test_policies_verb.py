"""Does `moesaic policies` list what the registries know?"""

from __future__ import annotations

from command import run, run_json

from moesaic.policies.cache import caches
from moesaic.policies.placement import FILLS
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules
from moesaic.policies.systems import SYSTEMS


def test_json_holds_every_name_and_summary() -> None:
    listed = run_json("policies")
    for kind, registry in (
        ("schedules", schedules),
        ("caches", caches),
        ("prefetches", prefetches),
    ):
        assert listed[kind] == {name: registry.summary(name) for name in registry}
    assert set(FILLS) < set(listed["fills"])
    assert list(listed["systems"]) == list(SYSTEMS)
    assert listed["systems"]["hybrimoe"]["schedule"] == "hybrid"


def test_tables_name_them_all() -> None:
    shown = run("policies").out
    assert all(name in shown for name in (*schedules, *caches, *prefetches, *FILLS, *SYSTEMS))


def test_simulate_help_offers_the_registered_names() -> None:
    shown = "".join(run("simulate", "--help").out.split())  # names may be broken over lines
    for name in (*schedules, *caches, *prefetches, *SYSTEMS):
        assert name in shown
