"""Is a machine able to do what it states, and no more?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from moesaic.core.capabilities import Capabilities
from moesaic.core.errors import UnknownName
from moesaic.core.layer_plan import Move
from moesaic.core.offloading import PCIE
from moesaic.core.report import Timeline
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.engine.engine_settings import EngineSettings
from moesaic.machines.accelerators import ACCELERATORS, EMULATED, NONE, Accelerator
from moesaic.machines.sim.machine import SIMULATED
from real_runs import loaded, running, say, settings

NAME = "olmoe"


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_a_machine_does_what_it_states(accelerator: str) -> None:
    """With policies that use everything there is: what happens is what was stated. Experts of the
    next layer are fetched whatever a copy is measured to cost, so a busy machine does the same."""
    model, timeline = loaded(NAME), Timeline()
    how = settings("best-split", "lru", "next-layer", accelerator=accelerator, checked=False)
    slots = model.slots(0.5) if how.capabilities.moves else 0
    recorded: list[tuple[LayerRouting, View]] = []
    given: list[Sequence[Forecast]] = []
    with running(model, how, slots, timeline=timeline) as runner:
        stated, decide = runner.machine.capabilities, runner.brain.decide

        def listening(routing: LayerRouting, view: View):  # type: ignore[no-untyped-def]
            recorded.append((routing, view))
            return decide(routing, view)

        look_ahead = runner.brain.look_ahead

        def given_to(
            forecasts: Sequence[Forecast] = (), body_forecasts: bool = True
        ) -> tuple[Move, ...]:
            given.append(forecasts)
            return look_ahead(forecasts, body_forecasts)

        runner.brain.decide, runner.brain.look_ahead = listening, given_to  # type: ignore[method-assign]
        say(runner, steps=20)
    assert stated is ACCELERATORS[accelerator].capabilities is how.capabilities
    assert {s.lane for s in timeline.spans if s.kind == "expert"} <= set(stated.devices)
    assert any(given) == stated.true_gates
    assert any(view.slots for _, view in recorded) == stated.moves
    assert any(s.lane == PCIE for s in timeline.spans) == stated.moves
    assert any(s.kind == "prefetch" for s in timeline.spans) == stated.prefetch
    assert bool(timeline.spans) == stated.timeline


def test_which_time_passes() -> None:
    assert SIMULATED.virtual_time
    assert not any(row.capabilities.virtual_time for row in ACCELERATORS.values())


def test_settings_ask_the_accelerator_what_it_can_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows no int8 and one kernel: a row in the table is all that settings need."""
    able = replace(EMULATED, expert_dtypes=("bf16", "int4"), kernels=("auto",))
    monkeypatch.setitem(ACCELERATORS, "plain", Accelerator("for this test", "this", able))
    EngineSettings(accelerator="plain", expert_dtype="int4", cache_ratio=0.5)
    with pytest.raises(UnknownName, match="int8"):
        EngineSettings(accelerator="plain", expert_dtype="int8")
    with pytest.raises(UnknownName, match="reference"):
        EngineSettings(accelerator="plain", kernel="reference")


def test_prefetching_needs_moves() -> None:
    with pytest.raises(AssertionError, match="must be moved"):
        Capabilities(NONE.devices, False, True, False, True)
