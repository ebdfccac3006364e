"""From how many tokens on do kernels for many pay, in the precisions that have any?"""

from __future__ import annotations

import pytest

from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.lab.profile import machine_profile
from moesaic.lab.profile.machine_profile import first_better, measure_crossovers
from moesaic.machines.real.lane import InlineLane
from moesaic.model_info.expert_shape import ExpertShape

TAKEN = {1: [5.0, 9.0], 2: [6.0, 6.0], 4: [8.0, 9.0], 8: [12.0, 10.0], 16: [20.0, 11.0]}


def test_many_must_never_lose_again() -> None:
    assert first_better(TAKEN) == 8
    assert first_better(TAKEN | {4: [8.0, 8.0]}) == 2
    assert first_better({1: [1.0, 1.0], 2: [3.0, 2.0]}) == 1


def test_where_many_always_lose_it_is_never_measured_to_pay() -> None:
    assert first_better({1: [1.0, 2.0], 32: [3.0, 4.0]}) == 33


def test_precisions_that_have_kernels_for_many_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_profile, "LARGE", ExpertShape(64, 32))
    monkeypatch.setattr(machine_profile, "CROSSOVER_TOKENS", (1, 4))
    expected = {"amx": {"bf16", "int8", "int4"}, REFERENCE: set()}.get(choose(), {"int4"})
    found = measure_crossovers(InlineLane(), 1)
    assert found.keys() == expected
    assert all(tokens in (1, 4, 5) for tokens in found.values())


def test_without_native_kernels_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_profile, "choose", lambda: REFERENCE)
    assert measure_crossovers(InlineLane(), 1) == {}
