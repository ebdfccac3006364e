"""Is a prompt that is read layer by layer near the same network in fp32, of quantised weights?"""

from __future__ import annotations

import pytest
import torch
from graph_models import shrunk
from random_experts import filled_store
from true_prompts import TrueNetwork, errors, reading_steps

from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.belief import Belief
from moesaic.policies.policy_set import PolicySet

BELIEF = Belief.from_points({1: 5000}, {1: 60000}, 5000, 90000, 64)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite"])
def test_the_same_experts_give_nearly_the_same_logits(name: str) -> None:
    architecture = shrunk(name)
    decoder = synthetic_decoder(architecture, "bf16", "reference")
    store = filled_store(architecture, "int4", "reference")  # which a CPU reads in a GPU's place
    truth = TrueNetwork(decoder, store, 3, 64)
    policies = PolicySet.of(schedule="gpu-only", cache="lru", prefetch="none")
    settings = EngineSettings(policies=policies, accelerator="cuda", max_sequences=3, threads=1)
    runner = on_store(decoder, store, settings, Capacity(20, 3, 64), device="cpu", belief=BELIEF)
    step = reading_steps()[-1]
    want = truth.step(step)
    got = runner.step(ForwardPass(step, replay=truth.routings.__getitem__))
    runner.close()
    assert errors(got, want).max() < 0.04
    assert errors(torch.roll(got, 1, 0), want).min() > 0.5, "rows differ from one another"
