"""Is every policy registered, loadable and described? (That they are offered: tests/cli.)"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest
from sources import sources

from moesaic.core.errors import UnknownName
from moesaic.core.registry import Registry
from moesaic.policies.cache import caches
from moesaic.policies.cache.base import Cache
from moesaic.policies.gate import gates
from moesaic.policies.gate.base import Gate
from moesaic.policies.layout import layouts
from moesaic.policies.layout.base import Layout
from moesaic.policies.policy_checks import check_together
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.prefetch import prefetches
from moesaic.policies.prefetch.base import Prefetch
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import CompiledSchedule, Schedule
from moesaic.policies.systems import EVERY_SYSTEM, MORE_SYSTEMS, NEAR_DATA_SYSTEMS, SYSTEMS

KINDS: dict[str, tuple[Registry[Any], type[Any]]] = {
    "schedule": (schedules, Schedule),
    "cache": (caches, Cache),
    "prefetch": (prefetches, Prefetch),
    "gate": (gates, Gate),
    "layout": (layouts, Layout),
}
EVERY = [(kind, name) for kind, (registry, _) in KINDS.items() for name in registry]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_registered_policy_loads_and_is_described(kind: str, name: str) -> None:
    registry, contract = KINDS[kind]
    policy = registry.load(name)
    assert issubclass(policy, contract)
    assert not inspect.isabstract(policy)
    summary = registry.summary(name)
    assert 10 < len(summary) < 110
    assert "\n" not in summary
    assert name in registry


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_registered_parameters_are_those_of_the_constructor(kind: str, name: str) -> None:
    """Every keyword with a default is a parameter, and has the default that is registered."""
    registry, _ = KINDS[kind]
    taken = inspect.signature(registry.load(name)).parameters.values()
    keywords = {each.name: each.default for each in taken if each.default is not each.empty}
    parameters = registry.entry(name).parameters
    assert {p.name: p.default for p in parameters} == keywords
    for parameter in registry.parameters(name):
        assert 10 < len(parameter.meaning) < 90
        assert parameter.read(name, parameter.default) == parameter.default
        assert parameter.read(name, parameter.write(parameter.default)) == parameter.default


@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_there_is_is_registered(kind: str) -> None:
    registry, contract = KINDS[kind]
    folder = f"moesaic.policies.{kind}."
    modules = [import_module(s.module) for s in sources() if s.module.startswith(folder)]
    written = {
        thing
        for module in modules
        for thing in vars(module).values()
        if inspect.isclass(thing) and issubclass(thing, contract) and not inspect.isabstract(thing)
        if thing.__module__ == module.__name__ and thing not in (contract, CompiledSchedule)
    }
    assert written == {registry.load(name) for name in registry}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_lists_the_known_ones(kind: str) -> None:
    registry, _ = KINDS[kind]
    with pytest.raises(UnknownName) as caught:
        registry.load("nonesuch")
    assert all(name in str(caught.value) for name in registry)


def test_systems_for_near_data_machines_differ_in_schedule_and_layout_only() -> None:
    moves = "relayout=false,rebalance=false"
    assert {name: str(system.policies) for name, system in NEAR_DATA_SYSTEMS.items()} == {
        "klotski": f"klotski + pinned + none + trimoe:{moves},devices=gpu",
        "enhanced-ktransformers": (
            f"enhanced-ktransformers + pinned + none + trimoe:{moves},devices=gpu-cpu"
        ),
        "monde": f"monde + pinned + none + trimoe:{moves},devices=gpu-ndp",
        "monde-localized": (
            f"monde + pinned + none + trimoe:{moves},offline=localized,devices=gpu-ndp"
        ),
        "trimoe": "trimoe + pinned + none + trimoe",
        "tri-balanced": ("tri-balanced + pinned + none + trimoe:offline=joint,margin=0.25"),
    }
    for system in NEAR_DATA_SYSTEMS.values():
        check_together(system.policies)
        assert str(system.policies.prefill_schedule) == "gpu-only"
    every = [*SYSTEMS, *MORE_SYSTEMS, *NEAR_DATA_SYSTEMS]
    assert list(EVERY_SYSTEM) == every
    assert len(set(every)) == len(every)


def test_known_systems_are_what_their_papers_say() -> None:
    assert {name: str(system.policies) for name, system in SYSTEMS.items()} == {
        "moesaic": "best-split + learned-speed:pool=global + impact",
        "hybrimoe": "hybrid + mrs:alpha=0.3,pool=global,admission=always + impact:read_ahead=0",
        "ktransformers": "static-experts + pinned + none",
        "llama.cpp": "static-layers + pinned:pool=global + none",
        "adapmoe": "gpu-only + lru + next-layer",
        "fiddler": "threshold + pinned + none",
    }
    prefill = {name: system.policies.prefill_schedule for name, system in SYSTEMS.items()}
    assert {name: str(schedule) for name, schedule in prefill.items() if schedule} == {
        "ktransformers": "gpu-only"
    }
    for system in SYSTEMS.values():
        check_together(system.policies)
        assert (system.policies.promote, system.policies.fill) == (True, "auto")
    assert SYSTEMS["moesaic"].policies == PolicySet(), "the defaults are one system"
