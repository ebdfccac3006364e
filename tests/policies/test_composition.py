"""Does the one composition make the brain and the placement that were asked for?"""

from __future__ import annotations

import numpy as np
import pytest

from made_up import exact_belief, routing_of, small_machine, small_model, view_of
from moesaic.core.errors import IllegalPlan, ImpossibleSetting
from moesaic.core.routing import ExpertId
from moesaic.engine.engine_settings import EngineSettings
from moesaic.lab.simulate.settings import Settings
from moesaic.machines.accelerators import EMULATED
from moesaic.machines.sim.physics import Physics
from moesaic.policies.compose import Composition
from moesaic.policies.policy_checks import (
    check_real,
    check_together,
    lookahead,
    needing_slots,
    needs_future,
)
from moesaic.policies.policy_set import PolicySet, with_options
from moesaic.policies.prefetch.impact import Impact
from moesaic.policies.schedule.base import Assignment, Schedule, Work
from moesaic.policies.schedule.best_split import BestSplit
from moesaic.policies.schedule.gpu_only import GpuOnly
from moesaic.policies.shape import Shape
from moesaic.policies.systems import SYSTEMS

MODEL = small_model(layers=3, experts=4, top_k=1)
SHAPE = Shape(3, 4, 1)
COUNTS = np.array([[9, 8, 7, 6], [1, 2, 0, 0], [0, 0, 0, 5]])
BELIEF = exact_belief(Physics(small_machine(), MODEL))


def composed(slots: int = 3, **choices: object) -> Composition:
    return Composition(PolicySet.of(**choices), SHAPE, slots)  # type: ignore[arg-type]


def test_parameters_reach_the_policies() -> None:
    brain = composed(cache="mrs:alpha=0.5,top_p=2", prefetch="impact:lookahead=1").brain(BELIEF)
    assert isinstance(brain.prefetch, Impact)
    assert brain.prefetch.lookahead == 1
    brain.cache.observe(routing_of(0, [[2, 1, 0]], [[0.6, 0.4, 0.2]], k=1))
    assert brain.cache.values[0] == pytest.approx([0.0, 0.2, 0.3, 0.0])


def test_both_speeds_are_parameters() -> None:
    """After one token the slow average is the plain mean, whatever its speed; after two it is
    half of each, or so much of the newest as it was asked to take."""
    first, second = (routing_of(0, [[expert]], [[1.0]], k=1) for expert in (0, 1))
    for fast, slow, kept in ((0.2, 0.01, 0.5), (0.8, 0.01, 0.5), (0.2, 0.9, 0.1)):
        cache = composed(cache=f"two-speed:fast={fast},slow={slow}").brain(BELIEF).cache
        cache.observe(first)
        cache.observe(second)
        old, new = fast * (1 - fast), fast
        assert cache.values[0, 0] == pytest.approx((old + kept) / 2)
        assert cache.values[0, 1] == pytest.approx((new + 1 - kept) / 2)


def test_slots_are_a_layers_own_or_shared_by_all() -> None:
    own = composed(cache="lru").placement(COUNTS)
    assert own == [ExpertId(0, 0), ExpertId(1, 1), ExpertId(2, 3)]
    assert composed(cache="lru:pool=global").placement(COUNTS) == [
        ExpertId(0, 0), ExpertId(0, 1), ExpertId(0, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(("pool", "victim"), [("global", ExpertId(0, 2)), ("per-layer", None)])
def test_an_admitted_expert_displaces_one_of_its_layer_or_of_any_layer(
    pool: str, victim: ExpertId | None
) -> None:
    """Layer 0 holds all three slots: layer 1 has none of its own to give up."""
    found = composed(schedule="gpu-only", cache=f"lru:pool={pool}", prefetch="none")
    brain = found.brain(BELIEF)
    view = view_of([(0, 0), (0, 1), (0, 2)], slots=3, experts=4)
    for step in ([0], [1]):  # 2 was never used
        brain.plan(routing_of(0, [step]), view)
    (transfer,) = brain.plan(routing_of(1, [[3]]), view).transfers
    assert (transfer.expert, transfer.victim, transfer.keep) == (3, victim, victim is not None)


@pytest.mark.parametrize("promote", [True, False])
def test_a_missed_expert_is_promoted_if_it_may_be(promote: bool) -> None:
    found = composed(schedule="static-experts", cache="lru", prefetch="none", promote=promote)
    plan = found.brain(BELIEF).plan(routing_of(0, [[3]]), view_of([], slots=3, experts=4))
    assert plan.queues["cpu"] == (3,)
    assert [transfer.expert for transfer in plan.background] == [3] * promote


def test_plans_are_proved_legal_where_that_was_asked_for() -> None:
    policies = PolicySet.of(schedule="gpu-only", cache="lru", prefetch="none")
    view = view_of([(0, 3)], slots=3, experts=4)
    for checked in (True, False):
        brain = Composition(policies, SHAPE, 3, checked).brain(BELIEF)
        brain.schedule = _Lazy()
        if checked:
            with pytest.raises(IllegalPlan):
                brain.plan(routing_of(0, [[3]]), view)
        else:
            assert not any(brain.plan(routing_of(0, [[3]]), view).queues.values())


class _Lazy(Schedule):
    """Gives no expert to any device."""

    def assign(self, work: Work) -> Assignment:
        return Assignment((), (), (), 0)


def test_the_schedule_or_the_fill_says_what_is_there_at_first() -> None:
    llama = SYSTEMS["llama.cpp"].policies
    whole = [ExpertId(0, e) for e in range(4)]
    assert Composition(llama, SHAPE, 5).placement(COUNTS) == whole
    assert composed(fill="layers", slots=5).placement() == whole
    assert composed(fill="empty").placement(COUNTS) == []
    assert Composition(llama.but(fill="popular"), SHAPE, 1).placement(COUNTS) == [ExpertId(0, 0)]


def test_dense_parts_follow_where_the_schedule_says_so() -> None:
    llama = Composition(SYSTEMS["llama.cpp"].policies, SHAPE, 5)
    assert llama.dense_on(llama.placement(COUNTS)) == ["gpu", "cpu", "cpu"]
    assert composed().dense_on(composed().placement(COUNTS)) is None


def test_prompts_may_have_a_schedule_of_their_own() -> None:
    found = composed(prefill_schedule="gpu-only")
    assert isinstance(found.schedule_for("prefill"), GpuOnly)
    assert isinstance(found.schedule_for("decode"), BestSplit)
    assert isinstance(found.brain(BELIEF).schedule, BestSplit)


def test_scores_are_asked_for_as_far_as_a_cache_counts_them() -> None:
    assert composed().ranks == composed(cache="mrs:top_p=1").ranks == 2
    assert composed(cache="mrs:top_p=3").ranks == 3
    assert composed(cache="mrs:top_p=99").ranks == 4


def test_what_policies_need_is_known_before_they_are_made() -> None:
    assert lookahead(PolicySet()) == 3
    assert lookahead(PolicySet.of(prefetch="oracle:lookahead=2")) == 2
    assert not needs_future(PolicySet())
    assert needs_future(PolicySet.of(cache="belady"))
    assert needs_future(PolicySet.of(prefetch="oracle"))
    kt = SYSTEMS["ktransformers"].policies
    assert needing_slots(kt) == "gpu-only"
    assert needing_slots(kt, ("decode",)) is None


@pytest.mark.parametrize("prefetch", ["impact", "next-layer", "impact:lookahead=1"])
def test_a_pinned_cache_refuses_prefetches_in_any_settings(prefetch: str) -> None:
    policies = PolicySet.of(cache="pinned:pool=global", prefetch=prefetch)
    for refuse in (
        lambda: check_together(policies),
        lambda: Settings(MODEL, small_machine(), policies=policies),
        lambda: EngineSettings(policies),
    ):
        with pytest.raises(ImpossibleSetting, match="cache 'pinned' never gives up a slot"):
            refuse()
    check_together(policies.but(prefetch="none"))


@pytest.mark.parametrize(("kind", "name"), [("cache", "belady"), ("prefetch", "oracle")])
def test_a_real_machine_has_no_oracles(kind: str, name: str) -> None:
    policies = PolicySet().but(**{kind: name})  # type: ignore[arg-type]
    assert Settings(MODEL, small_machine(), policies=policies)
    for accelerator in ("none", "emulated"):
        with pytest.raises(ImpossibleSetting, match=f"{kind} '{name}' must know the future"):
            EngineSettings(policies, accelerator=accelerator)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_body_follows_a_systems_rules_or_refuses_it(system: str) -> None:
    policies = SYSTEMS[system].policies
    assert Settings(MODEL, small_machine(), policies=policies)
    assert EngineSettings(policies).policies == policies, "without accelerator any rule holds"
    if system != "llama.cpp":
        check_real(policies, EMULATED)
        return
    with pytest.raises(ImpossibleSetting) as caught:
        EngineSettings(policies, accelerator="emulated")
    assert "schedule 'static-layers'" in str(caught.value)
    assert "moesaic simulate --policies llama.cpp" in str(caught.value)
    assert "emulated" not in str(caught.value), "any accelerator may lack the capability"


def test_a_schedule_of_prompts_alone_is_refused_too() -> None:
    policies = PolicySet.of(prefill_schedule="static-layers")
    with pytest.raises(ImpossibleSetting, match="schedule 'static-layers'"):
        check_real(policies, EMULATED)


def test_a_real_machine_has_no_dimms_to_lay_experts_out_in() -> None:
    """Without accelerator there is nothing to plan, but the layout would be just as untrue."""
    for accelerator in ("none", "emulated"):
        with pytest.raises(ImpossibleSetting, match="layout 'offline' places experts in DIMMs"):
            EngineSettings(PolicySet.of(layout="offline"), accelerator=accelerator)


def test_options_are_fields_or_policies() -> None:
    base = EngineSettings()
    found = with_options(base, {"threads": 1, "cache": "mrs:alpha=0.2", "fill": "empty"})
    assert (found.threads, found.policies.fill) == (1, "empty")
    assert str(found.policies) == "best-split + mrs:alpha=0.2 + impact"
    both = with_options(base, {"policies": PolicySet.of(schedule="hybrid"), "cache": "lru"})
    assert str(both.policies) == "hybrid + lru + impact"
    assert with_options(base, {}) == base


def test_policies_must_be_a_set() -> None:
    with pytest.raises(ImpossibleSetting, match="policies is 'mrs'; it must be a PolicySet"):
        EngineSettings(policies="mrs")  # type: ignore[arg-type]
