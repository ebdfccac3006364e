"""An example in the spirit of HybriMoE's Fig. 5, by hand.

An expert takes 1 unit on the GPU whatever its load, 1 unit per token on the CPU, and 3 units
over the link.

    expert   A  B  F  E | C  D
    load     4  3  3  1 | 5  2
    cached   yes        | no

Cached on the GPU and the rest on the CPU takes 5 + 2 = 7. Everything on the GPU takes 7: D
arrives at 6. Moving C but leaving all cached experts to the GPU takes 5: A B F E until 4, then C.
The best takes 4: the link brings C by 3, the GPU does A B F until 3 and C until 4, the CPU does
D and then the cached E until 3. Nothing is faster (C alone needs 5 on the CPU and 3 + 1 on the
GPU) and nothing else is as fast: within 4 units the GPU has room for three experts beside C, D
cannot arrive, and the CPU has 2 units left beside D, enough for E only."""

from __future__ import annotations

import pytest
from drawn_work import naive_best, work_of

from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import Work
from moesaic.policies.timelines import ABSENT

C, A, B, F, D, E = range(6)  # by falling load


@pytest.fixture
def example() -> Work:
    return work_of(
        loads=[5, 4, 3, 3, 2, 1],
        ready=[ABSENT, 0, 0, 0, ABSENT, 0],
        gpu=lambda t: 1,
        cpu=lambda t: t,
        transfer=3,
    )


@pytest.mark.parametrize(
    ("schedule", "units"), [("static-experts", 7), ("static-layers", 7), ("gpu-only", 7)]
)
def test_the_simple_schedules_take_what_the_arithmetic_says(
    example: Work, schedule: str, units: int
) -> None:
    assert schedules.create(schedule).assign(example).believed_ns == units


def test_fiddler_judges_each_expert_alone(example: Work) -> None:
    """C: 5 on the CPU against 3 + 1, so it moves; D: 2 against 4, so it stays."""
    found = schedules.create("threshold").assign(example)
    assert (found.moved, found.cpu, found.believed_ns) == ((C,), (D,), 5)


@pytest.mark.parametrize(("load", "on_cpu"), [(4, True), (5, False)])
def test_fiddler_counts_the_transfer_and_the_gpu(load: int, on_cpu: bool) -> None:
    """3 + 1 over the link and on the GPU against 1 per token on the CPU; a draw stays there."""
    work = work_of([load], [ABSENT], lambda t: 1, lambda t: t, transfer=3)
    assert bool(schedules.create("threshold").assign(work).cpu) is on_cpu


@pytest.mark.parametrize("schedule", ["hybrid", "best-split", "optimal"])
def test_the_cpu_computes_a_cached_expert_while_the_gpu_takes_an_uncached_one(
    example: Work, schedule: str
) -> None:
    found = schedules.create(schedule).assign(example)
    assert found.believed_ns == 4
    assert found.moved == (C,)
    assert set(found.cpu) == {D, E}
    assert set(found.gpu) == {A, B, F, C}
    assert found.gpu[-1] == C


def test_four_units_are_the_best(example: Work) -> None:
    assert naive_best(example) == 4
