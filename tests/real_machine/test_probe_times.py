"""Is a machine measured once for everything it has one of, and no longer than a model may wait?"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moesaic.engine.engine_settings import EngineSettings
from moesaic.machines.layerwise import cpu_layers, probes
from moesaic.machines.real.lane import InlineLane
from real_runs import loaded, running

FAMILY = "qwen3-moe"


class Counting:
    """An executor that computes nothing and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def layer(self, *_: Any) -> None:
        self.calls += 1


@pytest.mark.parametrize(("enough_ns", "calls"), [(50_000_000, 6), (0, 2)])
def test_what_takes_long_is_measured_fewer_times(
    enough_ns: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time does not count; then five, or as many as there is time for, at least one."""
    monkeypatch.setattr(probes, "_ENOUGH_NS", enough_ns)
    executor: Any = Counting()
    store = loaded(FAMILY).store
    assert probes.time_on_lane(store, torch.float32, executor, InlineLane(), 1, 1) > 0
    assert executor.calls == calls


def test_without_an_accelerator_the_cpu_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A belief asks for a GPU too, which is the CPU again."""
    asked: list[tuple[int, int]] = []

    def timed(*words: Any) -> int:
        asked.append(words[-2:])
        return 1000

    monkeypatch.setattr(cpu_layers, "time_on_lane", timed)
    with running(loaded(FAMILY), EngineSettings(max_step_tokens=4)):
        pass
    assert sorted(asked) == [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)]
