"""What a simulated run starts from: which tokens of the trace, or which file."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import profile, simulate, workload
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.expert_profile import ExpertProfile, ProfiledModel
from moesaic.policies.shape import Shape
from moesaic.policies.systems import load_system
from moesaic.workloads.source import MemoryTrace, TraceSource
from moesaic.workloads.steps import popularity

MODEL = load_model("olmoe-1b-7b")
SHAPE = Shape(MODEL.num_moe_layers, MODEL.num_experts, MODEL.top_k)


def settings(**options: Any) -> Settings:
    usual: dict[str, Any] = {"tokens": 12, "warmup": 2, "profile_tokens": 40}
    policies = load_system("ktransformers").policies
    return Settings(MODEL, load_machine("h200-emr16"), policies=policies, **(usual | options))


@cache
def trace() -> TraceSource:
    source = choose_workload(None, settings(first_token=200)).source
    return MemoryTrace(source.header, list(source.blocks()))


def test_profiles_of_different_lengths_come_before_the_same_tokens() -> None:
    short, long = settings(first_token=200), settings(first_token=200, profile_tokens=200)
    assert settings().skipped_tokens == 40
    for first, second in zip(workload(short, trace()), workload(long, trace()), strict=True):
        assert (first.routed.experts == second.routed.experts).all()
    assert (profile(long, trace()).counts == popularity(trace(), 200)).all()
    last = popularity(trace(), 200) - popularity(trace(), 160)
    assert (profile(short, trace()).counts == last).all()
    assert simulate(short, trace()).hit_rate != simulate(long, trace()).hit_rate


def test_a_file_stands_instead_of_the_profile_and_moves_nothing_else() -> None:
    """A static placement by the very tokens that are measured finds most of them."""
    asked = settings(first_token=200)
    measured = popularity(trace(), 200 + 14) - popularity(trace(), 200)
    known = ExpertProfile(ProfiledModel(MODEL.name, SHAPE), 14, measured)
    given = replace(asked, placement=known)
    assert (profile(given, trace()).counts == measured).all()
    for first, second in zip(workload(asked, trace()), workload(given, trace()), strict=True):
        assert (first.routed.experts == second.routed.experts).all()
    assert simulate(given, trace()).hit_rate > simulate(asked, trace()).hit_rate


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ImpossibleSetting, match="begin later"):
        settings(first_token=30)
    other = ProfiledModel("other", Shape(2, 3, 1))
    with pytest.raises(ImpossibleSetting, match="of other, and"):
        settings(placement=ExpertProfile(other, 1, np.ones((2, 3), dtype=np.int64)))
