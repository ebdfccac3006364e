"""Does the brain learn what the CPU takes, whatever it believed, and plan by that?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.report import LayerReport
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.brain import Brain
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules

MODEL = small_model(layers=2, experts=8, top_k=3)
FIRST, EXPERT = 20_000, 18_000  # nanoseconds that the CPU takes
SLOW_LINK = 10**9
POLICIES = PolicySet.of(schedule="best-split", cache="two-speed", prefetch="impact")


def believing(first: int, expert: int, transfer: int = SLOW_LINK, slowed: int = 300) -> Brain:
    physics = stated_physics(
        lambda t: 1000, lambda t: expert * t, first=first, transfer=transfer, model=MODEL
    )
    belief = replace(exact_belief(physics), cpu_slowed=slowed)
    return make_brain(MODEL, belief, 4, "best-split", "lru", promote=False)


def compute(brain: Brain, experts: list[int], cpu_ns: int) -> int:
    """One layer of a token whose experts are all missing; how many of them the CPU has."""
    routing = routing_of(0, [experts])
    plan = brain.plan(routing, view_of([], 4, 2))
    brain.learn(routing, LayerReport(0, 0, cpu_ns, len(experts), 0, 0, cpu_ns=cpu_ns))
    return len(plan.queues["cpu"])


def compute_many(brain: Brain, layers: int, first: int = FIRST, expert: int = EXPERT) -> None:
    for number in range(layers):
        count = 1 + number % 3
        assert compute(brain, list(range(count)), first + expert * count) == count


def costs(brain: Brain) -> tuple[int, int]:
    """Of the first expert beyond the others, and of one."""
    return int(brain.state.costs.cpu_first_ns), int(brain.state.costs.tables[1, 1])


@pytest.mark.parametrize(
    ("first", "expert"), [(FIRST, EXPERT), (60_000, EXPERT), (0, EXPERT), (40_000, 33_000)]
)
def test_a_line_through_what_layers_took_replaces_the_belief(first: int, expert: int) -> None:
    brain = believing(first, expert)
    compute_many(brain, 48)
    learned_first, learned = costs(brain)
    assert learned == pytest.approx(EXPERT, rel=0.06)
    for count in (1, 2, 3):
        taken = FIRST + count * EXPERT
        assert learned_first + count * learned == pytest.approx(taken, rel=0.03)


def test_a_few_layers_change_nothing() -> None:
    brain = believing(60_000, 33_000)
    compute_many(brain, 7)
    assert costs(brain) == (60_000, 33_000)


def test_layers_of_which_the_cpu_took_unknown_time_teach_nothing() -> None:
    brain = believing(60_000, 33_000)
    for _ in range(20):
        compute(brain, [0, 1], 0)
    assert costs(brain) == (60_000, 33_000)


def test_layers_that_are_all_alike_scale_the_table() -> None:
    """One point is no line: what the first one costs more is then as believed."""
    brain = believing(FIRST, 30_000)
    for _ in range(40):
        compute(brain, [0, 1, 2], FIRST + 3 * EXPERT)
    assert costs(brain)[0] == pytest.approx(FIRST, rel=0.02)
    assert costs(brain)[1] == pytest.approx(EXPERT, rel=0.03)


def test_a_layer_during_which_others_had_the_cores_is_no_rule() -> None:
    brain = believing(FIRST, EXPERT)
    compute_many(brain, 48)
    compute(brain, [0, 1], 500 * EXPERT)
    first, expert = costs(brain)
    assert first + 2 * expert < 1.1 * (FIRST + 2 * EXPERT)


def test_steps_of_other_sizes_begin_as_believed() -> None:
    brain = believing(60_000, 33_000)
    compute_many(brain, 48)
    assert costs(brain) != (60_000, 33_000)
    many = routing_of(0, [[0, 1, 2]] * 4)
    brain.plan(many, view_of([], 4, 2))
    brain.learn(many, LayerReport(0, 0, 90_000, 3, 0, 0, cpu_ns=90_000))
    assert costs(brain) == (60_000, 33_000)


def test_another_belief_is_believed() -> None:
    brain = believing(60_000, 33_000)
    compute_many(brain, 48)
    brain.belief = replace(brain.belief, cpu_first_ns=7)
    assert costs(brain) == (7, 33_000)


def test_schedules_that_plan_by_the_paper_keep_their_belief() -> None:
    brain = believing(60_000, 33_000)
    brain.schedule = schedules.load("hybrid")()
    compute_many(brain, 48)
    assert costs(brain) == (60_000, 33_000)


@pytest.mark.parametrize("schedule", ["best-split", "optimal"])
def test_plans_follow(schedule: str) -> None:
    """Believed to take 99 us for one expert, the CPU is left alone; once it was seen to take 38,
    it is used. Three experts at once are too much for the link, so it is seen sometimes."""
    brain = believing(60_000, 39_000, transfer=60_000)
    brain.schedule = schedules.load(schedule)()
    assert compute(brain, [0], 0) == 0
    for _ in range(12):
        assert compute(brain, [0, 1, 2], FIRST + EXPERT) > 0
    assert compute(brain, [0], 0) == 1


@pytest.mark.parametrize("schedule", ["best-split", "optimal"])
@pytest.mark.parametrize(("more", "moved"), [(0, 1), (5_000, 1), (50_000, 0)])
def test_a_transfer_must_be_worth_what_demanding_costs(
    more: int, moved: int, schedule: str
) -> None:
    """The CPU takes 74 us for three experts, and 56 for two beside a transfer of 40."""
    brain = believing(FIRST, EXPERT, transfer=40_000, slowed=1)
    brain.schedule = schedules.load(schedule)()
    brain.state.learned.demand_more_ns = more
    plan = brain.plan(routing_of(0, [[0, 1, 2]]), view_of([], 4, 2))
    assert (len(plan.transfers) > 0) == bool(moved)


@pytest.mark.parametrize(("late", "tried"), [(30_000, False), (0, True)])
def test_what_demanding_costs_is_learned_from_layers_that_do(late: int, tried: bool) -> None:
    """Two layers in turn: the first demands a transfer or nothing, what comes after it is late."""
    brain, now = believing(FIRST, EXPERT, transfer=40_000, slowed=1), 0
    for number in range(40):
        experts = [0] if number % 2 else [0, 1, 2]
        for layer, chosen in ((0, experts), (1, [0])):
            routing = routing_of(layer, [chosen])
            plan = brain.plan(routing, view_of([], 4, 2))
            end = now + plan.believed_ns
            brain.learn(routing, LayerReport(layer, now, end, len(chosen), 0, 0))
            now = end + 50_000 + late * bool(plan.transfers)
    more = int(brain.state.learned.demand_more_ns)
    assert more == pytest.approx(late, rel=0.1)
    plan = brain.plan(routing_of(0, [[0, 1, 2]]), view_of([], 4, 2))
    assert bool(plan.transfers) is tried


@pytest.mark.parametrize("error", [0.6, 1.8])
def test_in_a_whole_run_a_wrong_belief_costs_little(error: float) -> None:
    """Without learning, 6 and 14 %."""
    path = Path(__file__).parents[1] / "cuda" / "recorded_cuda_machine.toml"
    asked = Settings(
        load_model("olmoe-1b-7b"), load_machine(str(path)), policies=POLICIES, cache_ratio=0.5,
        tokens=32, warmup=4, expert_dtype="int4",
    )  # fmt: skip
    trace = choose_workload(None, asked).source
    right, wrong = (
        simulate(replace(asked, belief_error=wrong), trace).elapsed_s
        for wrong in ({}, {"cpu": error})
    )
    assert wrong < 1.02 * right
