"""Does the warm-up learn what a machine costs, and does the brain decide by nothing else?"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from made_up import exact_belief, make_brain, routing_of, routing_of_loads, stated_physics, view_of
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.machines.sim import SimMachine
from moesaic.policies.belief import Belief, warm_up
from moesaic.policies.costs import UNREADABLE


def test_a_linear_machine_is_learned_exactly() -> None:
    physics = stated_physics(lambda t: 100 + 4 * t, lambda t: 50 + 30 * t, first=77, transfer=900)
    belief = warm_up(SimMachine(physics, slots=4), max_tokens=50)
    tokens = np.arange(1, 51)
    assert belief.tables[0, 1:].tolist() == (100 + 4 * tokens).tolist()
    assert belief.tables[1, 1:].tolist() == (50 + 30 * tokens).tolist()
    assert belief.tables[:, 0].tolist() == [0, 0]
    assert (belief.cpu_first_ns, belief.transfer_ns) == (77, 900)


def test_a_bent_machine_is_exact_at_the_probes_and_between_its_neighbours_elsewhere() -> None:
    """Memory-bound up to 10 tokens, then linear: the probes are 1, 2, 4, ..., 32 and 50."""
    physics = stated_physics(lambda t: 100, lambda t: max(300, 30 * t), transfer=900)
    table = warm_up(SimMachine(physics, slots=4), max_tokens=50).tables[1]
    probes = [1, 2, 4, 8, 16, 32, 50]
    assert [int(table[t]) for t in probes] == [physics.cpu[t] for t in probes]
    for low, high in itertools.pairwise(probes):
        between = table[low : high + 1]
        assert (np.diff(between) >= 0).all()
        steps = np.diff(between)
        assert steps.max() - steps.min() <= 1, "a straight line, up to rounding"


def test_few_points_are_continued_in_a_straight_line() -> None:
    belief = Belief.from_points({1: 10, 3: 14}, {2: 7}, 0, 1, max_tokens=6)
    assert belief.tables[0].tolist() == [0, 10, 12, 14, 16, 18, 20]
    assert belief.tables[1].tolist() == [0, 7, 7, 7, 7, 7, 7]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 64])
def test_tables_reach_the_largest_batch(max_tokens: int) -> None:
    physics = stated_physics(lambda t: 10 + t, lambda t: 20 + t, transfer=5)
    belief = warm_up(SimMachine(physics, slots=4), max_tokens)
    assert belief.tables.shape == (2, max_tokens + 1)
    assert belief.tables[0, max_tokens] == 10 + max_tokens


@pytest.mark.parametrize(("cpu_cost", "device"), [(1, CPU), (1000, GPU)])
def test_the_plan_follows_the_belief(cpu_cost: int, device: str) -> None:
    """The same routing and view: a CPU believed fast gets the experts, a slow one does not."""
    physics = stated_physics(lambda t: 20, lambda t: cpu_cost, transfer=50)
    brain = make_brain(physics.model, exact_belief(physics), slots=18)
    plan = brain.plan(routing_of(0, [[0, 1]]), view_of([], 18))
    assert set(plan.queues[device]) == {0, 1}


def test_a_larger_batch_than_was_measured_extends_the_tables() -> None:
    belief = Belief.from_points({1: 10, 4: 16}, {1: 5, 4: 20}, 0, 1, max_tokens=4)
    assert belief.covering(4) is belief
    wider = belief.covering(6)
    assert wider.tables[0, :7].tolist() == [0, 10, 12, 14, 16, 18, 20]
    assert wider.tables[1, 6] == 30


def test_a_brain_plans_batches_it_has_not_measured() -> None:
    """Compiled rules look costs up by load without checking bounds."""
    physics = stated_physics(lambda t: 10, lambda t: 10 * t)
    brain = make_brain(physics.model, exact_belief(physics, 1), 4, "static-experts")
    loads = [50] + [0] * (physics.model.num_experts - 1)
    view = view_of((), 4, physics.model.num_moe_layers, physics.model.num_experts)
    assert brain.plan(routing_of_loads(0, loads), view).believed_ns == 500


def test_a_belief_can_be_made_wrong_about_one_device_or_link() -> None:
    physics = stated_physics(lambda t: 100 + 4 * t, lambda t: 50 + 30 * t, first=77, transfer=900)
    true = replace(warm_up(SimMachine(physics, slots=4), max_tokens=8), decision_ns=5)
    wrong = true.off_by({CPU: 2.0, PCIE: 0.5})
    assert wrong.tables[0].tolist() == true.tables[0].tolist()
    assert wrong.tables[1].tolist() == (2 * true.tables[1]).tolist()
    assert (wrong.cpu_first_ns, wrong.transfer_ns, wrong.decision_ns) == (154, 450, 5)
    assert true.off_by({GPU: 1.5}).tables[0, 2] == 162
    assert true.off_by({}) is true


def test_what_cannot_be_read_stays_unreadable_in_a_wrong_belief() -> None:
    physics = stated_physics(lambda t: 10, lambda t: 20, transfer=5)
    costs = warm_up(SimMachine(physics, slots=4), max_tokens=2).costs
    assert costs is not None
    unreadable = costs.expert_ns == UNREADABLE
    assert unreadable.any()
    assert ((costs.off_by({GPU: 3.0, CPU: 3.0}).expert_ns == UNREADABLE) == unreadable).all()
