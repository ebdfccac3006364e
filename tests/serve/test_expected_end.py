"""Is the sum that the server explains a plan with the planner's own?"""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.core.offloading import CPU, GPU
from moesaic.engine.insight.facts import ExpertFacts, LayerFacts, PlannedLanes, Ran
from moesaic.policies.belief import Belief
from moesaic.policies.schedule.base import Work, served_as
from moesaic.policies.timelines import ABSENT, MOVED, ON_CPU, ON_GPU
from moesaic.serve.insight.expected_end import expected_end_ns

WAYS: dict[int, Ran] = {ON_GPU: GPU, ON_CPU: CPU, MOVED: "link"}  # type: ignore[dict-item]


@pytest.mark.parametrize("seed", range(200))
def test_it_is_the_planners(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 9))
    loads = np.sort(random.integers(1, 6, n))[::-1]
    ready = random.choice([0, ABSENT, 40, 90], n)
    tables = np.sort(random.integers(1, 100, (2, 6)))
    kinds = [
        int(random.choice([ON_CPU, MOVED if at == ABSENT else ON_GPU])) for at in ready.tolist()
    ]
    slowed = int(random.choice([0, 300]))
    lanes = np.array([*random.integers(0, 50, 4), 70, slowed], dtype=np.int64)
    table = np.stack([np.arange(n), loads, ready]).astype(np.int64)
    belief = Belief(tables.astype(np.int64), int(lanes[3]), 70)
    planned = served_as(Work(0, n, table, lanes, belief), kinds).believed_ns

    experts = [
        ExpertFacts(
            at, load, WAYS[kind], "host" if when == ABSENT else "coming" if when else "accelerator",
            max(when, 0), int(tables[0, load]), int(tables[1, load]),
        )
        for at, (load, when, kind) in enumerate(
            zip(loads.tolist(), ready.tolist(), kinds, strict=True)
        )
    ]  # fmt: skip
    layer = LayerFacts(0, 0, planned, n, 0, 0, 0, experts, PlannedLanes(*lanes.tolist()))
    assert expected_end_ns(layer) == planned
    for each in experts:
        other: Ran = "cpu" if each.ran != "cpu" else "link" if each.place == "host" else "gpu"
        changed = list(kinds)
        changed[each.expert] = {"cpu": ON_CPU, "link": MOVED, "gpu": ON_GPU}[other]
        expected = served_as(Work(0, n, table, lanes, belief), changed).believed_ns
        assert expected_end_ns(layer, {each.expert: other}) == expected


def test_nothing_is_expected_without_costs() -> None:
    assert expected_end_ns(LayerFacts(0, 0, None, 0, 0, 0, 0, [], None)) is None
