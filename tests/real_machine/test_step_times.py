"""Is a step's time attributed as it was spent?"""

from __future__ import annotations

from time import sleep

import pytest
import torch

from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.experts.feed_forward import GatedMlp, MoeBlock
from real_runs import loaded, running, settings

SLOW_S = 0.02


@pytest.mark.parametrize("accelerator", ["none", "emulated"])
def test_shared_experts_are_no_overhead(accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run on the accelerator's lane, or as part of the network where there is none."""
    shared = MoeBlock._shared

    def slow(block: MoeBlock, network: GatedMlp, hidden: torch.Tensor) -> torch.Tensor:
        sleep(SLOW_S)
        return shared(block, network, hidden)

    monkeypatch.setattr(MoeBlock, "_shared", slow)
    model = loaded("deepseek-v2")
    how = settings("static-experts", "pinned", "none", accelerator=accelerator)
    slots = model.slots(0.5) if accelerator == "emulated" else 0
    with running(model, how, slots) as runner:
        runner.step(ForwardPass([Piece(0, [1])]))
        costs, layers = runner.machine.times, len(runner.report.layers) if runner.report else 0
    computing = costs.experts_ns if accelerator == "emulated" else costs.network_ns
    assert layers > 0
    assert computing >= layers * SLOW_S * 1e9
    assert costs.network_ns + costs.experts_ns + costs.overhead_ns == costs.step_ns
    assert costs.overhead_ns >= 0
