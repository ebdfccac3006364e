"""What `python -m benchmarks.planners` times."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import planners
from moesaic.policies.policy_set import PolicySet


def test_the_default_system_is_timed_against_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PolicySet] = []

    def times(*given: Any) -> tuple[list[float], list[float]]:
        asked.append(given[-1])
        return [4.0], [20.0]

    monkeypatch.setattr(planners, "decision_times_us", times)
    rows = planners.time_brain()
    assert PolicySet() in asked
    assert not PolicySet().per_layer, "one pool of slots"
    budget = {
        row["what"]: row["target_us"]
        for row in rows
        if str(row["what"]).startswith("default") and str(row["case"]).endswith("batch 1")
    }
    assert budget == {
        "default: decision": 10.0,
        "default: look-ahead": 30.0,
        "default: decision, C function": 10.0,
        "default: look-ahead, C function": 30.0,
    }
