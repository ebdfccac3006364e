"""Does the profile find in captured steps what link and CPU cost each other? In steps whose times
are made up: the CPU takes 100 us for a layer of two experts alone, a copy 70."""

from __future__ import annotations

import pytest

pytest.importorskip("moesaic.machines.captured._conductor")

from moesaic.lab.profile.link_times import NO_LINK_COSTS, Copy, copies_of, link_times
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.captured.conductor import CopyTimes, LayerTimes, LayerWork
from moesaic.machines.captured.stamps import StepStamps

pytestmark = pytest.mark.without_native

US = 1000
EXPERTS, ON_CPU = 8, (0, 1, 2)
FIRST, EACH = 10 * US, 30 * US  # of the CPU: 100 us for three experts
BETWEEN = 60 * US  # from a sum to the next routing
LAYER = 1000 * US  # from a layer's routing to the next, as these are drawn


def step(
    number: int,
    copied: int | None = None,
    cpu_us: int = 100,
    copy_us: int = 70,
    late_us: int = 0,
    in_place: tuple[int, ...] = (),
) -> CapturedStep:
    """Two layers with a copy of expert `copied` (as the conductor counts) beside the first, which
    begins with the CPU and ends a microsecond before `copy_us` have passed."""
    start = 10 * LAYER * (number + 1)
    first = _times(start, cpu_us)
    second = _times(first.summed + BETWEEN + late_us * US, 100)
    work = LayerWork([], [], list(in_place), list(ON_CPU), [1] * len(ON_CPU), 0)
    ended = first.planned + copy_us * US
    copies = []
    if copied is not None:
        copies.append(CopyTimes(copied, True, first.planned, ended - US, ended))
    stamps = StepStamps(start, [], start + LAYER)
    return CapturedStep(start, start + LAYER, 1, stamps, [first, second], [work, work], copies)


def _times(routed: int, cpu_us: int) -> LayerTimes:
    planned = routed + 5 * US
    ended = planned + cpu_us * US
    return LayerTimes(
        routed, planned, planned, planned, ended, 5, len(ON_CPU), 0, 0, 5, planned, planned, ended,
        ended,
    )  # fmt: skip


def found(*runs: list[CapturedStep]) -> object:
    return link_times(runs, EXPERTS, FIRST, EACH).costs()


def test_too_little_says_nothing() -> None:
    assert found([]) == NO_LINK_COSTS
    assert found([step(n, copied=0, cpu_us=150, copy_us=200) for n in range(3)]) == NO_LINK_COSTS


def test_copies_from_caches_and_from_memory_are_told_apart() -> None:
    """Expert 2 of layer 0 is computed there; expert 5 is not."""
    still = [step(n) for n in range(6)]
    cached = [step(n, copied=2, cpu_us=130, copy_us=230, late_us=30) for n in range(8)]
    plain = [step(n, copied=5, cpu_us=110, copy_us=200, late_us=10) for n in range(8)]
    every = link_times([still, cached, plain], EXPERTS, FIRST, EACH)
    assert every.cpu_cached == [300] * 8
    assert every.cpu_plain == [100] * 8
    costs = every.costs()
    assert costs.cached_factor == 230 / 200
    assert costs.cpu_cached == 300
    assert (costs.busy_handover_us, costs.cached_handover_us) == (10, 30)


def test_copies_beside_kernels_that_read_over_the_link_are_left_out() -> None:
    runs = [step(n, copied=2, cpu_us=130, copy_us=230, in_place=(6,)) for n in range(8)]
    assert found(runs) == NO_LINK_COSTS


def test_copies_end_in_order_and_unwatched_ones_last_as_long_as_others() -> None:
    base = step(0)
    noted = [
        CopyTimes(1, True, 0, 70 * US - US, 70 * US),
        CopyTimes(2, True, 10 * US, 140 * US - US, 140 * US),  # begins when the first has ended
        CopyTimes(3, True, 150 * US, 160 * US, 900 * US),  # ended unseen
        CopyTimes(4, True, 1000 * US, 1100 * US, 1900 * US),  # seen under way after 100 us
    ]
    copies = copies_of([base._replace(copies=noted)])
    assert copies == [
        Copy(1, 0, 70 * US, True),
        Copy(2, 70 * US, 140 * US, True),
        Copy(3, 150 * US, 220 * US, False),
        Copy(4, 1000 * US, 1100 * US, False),
    ]
