"""Is the CPU's slowdown beside copies found although other programs disturb it, and although copies
may end too soon?"""

from __future__ import annotations

from typing import Any

import pytest

from moesaic.machines.layerwise import contention
from moesaic.machines.layerwise.contention import slowdown
from real_runs import USUAL, loaded, running, settings

CALL_NS = 100_000


class Machine:
    """A clock, a CPU whose calls take 1.37 times as long while copies run, and copies that run
    for `share` of the time they were asked for. Every seventh call is disturbed."""

    def __init__(self, share: float) -> None:
        self.now, self._until, self._share, self._calls = 0, 0, share, 0
        self.asked: list[int] = []

    def call(self) -> None:
        self._calls += 1
        copying = self.now < self._until
        self.now += round(CALL_NS * (1.37 if copying else 1.0) * (9 if self._calls % 7 == 0 else 1))

    def start(self, duration_ns: int) -> Machine:
        self.asked.append(duration_ns)
        self._until = self.now + round(self._share * duration_ns)
        return self

    def ended(self) -> bool:
        return self.now >= self._until

    def finish(self) -> None:
        self.now = max(self.now, self._until)


@pytest.mark.parametrize("share", [4.0, 1.0])
def test_the_slowdown_is_found_among_disturbances(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine: Any = Machine(share)
    monkeypatch.setattr(contention, "perf_counter_ns", lambda: machine.now)
    assert slowdown(machine.call, machine) == 370
    lengthened = any(b == 2 * a for a, b in zip(machine.asked, machine.asked[1:], strict=False))
    assert lengthened == (share == 1.0), "copies that end too soon are lengthened"


def test_copies_that_seem_to_cost_nothing_cost_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the planner would move whatever it can, and not learn what that costs."""
    machine: Any = Machine(0.0)
    monkeypatch.setattr(contention, "perf_counter_ns", lambda: machine.now)
    assert slowdown(machine.call, machine) == 1


@pytest.mark.parametrize("accelerator", ["cuda", "emulated"])
def test_machines_measure_it(accelerator: str) -> None:
    """The CPU plays the GPU: nothing runs beside anything, and the figure means nothing."""
    how = settings("best-split", "two-speed", "impact", accelerator=accelerator)
    model = loaded("olmoe")
    with running(model, how, model.slots(0.3)) as runner:
        assert runner.machine.probe_slowdown("cpu") >= 1
        assert runner.brain.belief.cpu_slowed >= 1
    assert USUAL.accelerator == "emulated"
