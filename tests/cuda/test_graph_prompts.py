"""Are prompts that captured steps read as exact as those read layer by layer?

Both round, each in its own order, and in a random model every tenth row has two experts that are so
close that rounding decides between them. So both are compared with the same network in fp32: first
with its choice of experts replayed, where every row must be near; then with their own, where as
many rows must be near as layer by layer. `--log-cli-level=INFO` shows how near."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from executors import captured_of
from graph_models import shrunk
from random_experts import filled_store
from true_prompts import TrueNetwork, errors, reading_steps, same_best

from moesaic.core.routing import LayerRouting
from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.models.configs.architecture import Architecture
from moesaic.models.decoder import Decoder
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.policy_set import PolicySet
from network_changes import with_router
from scattered_blocks import scatter_blocks

LOG = logging.getLogger(__name__)
CAPACITY = Capacity(slots=20, sequences=4, length=300)
SPLIT, ON_GPU = ("best-split", "two-speed", "impact"), ("gpu-only", "pinned", "none")
NEAR = 0.04  # of a row's norm: bf16 alone is at 0.01 to 0.03, another expert at 0.05 to 0.4


@dataclass(frozen=True)
class Truth:
    """A model, its logits in fp32, and the experts that were chosen for them, by step."""

    decoder: Decoder
    store: ExpertStore
    logits: torch.Tensor
    routings: list[list[LayerRouting]]


def architecture_of(name: str) -> Architecture:
    if name != "deepseek-v3, groups":
        return shrunk(name)
    whole = shrunk("deepseek-v3")
    return with_router(whole, groups=4, top_groups=2)


@cache
def truth_of(name: str, dtype: str) -> Truth:
    architecture = architecture_of(name)
    decoder = synthetic_decoder(architecture, "bf16", "reference")
    store = filled_store(architecture, dtype)
    network = TrueNetwork(decoder, store, CAPACITY.sequences, CAPACITY.length)
    logits, routings = [], []
    for step in reading_steps():
        logits.append(network.step(step))
        routings.append(network.routings)
    return Truth(decoder, store, torch.cat(logits), routings)


def read(runner: Runner, truth: Truth, replay: bool, captured: bool) -> torch.Tensor:
    machine, rows = runner.machine, []
    for step, routings in zip(reading_steps(), truth.routings, strict=True):
        rows.append(runner.step(ForwardPass(step, replay=routings.__getitem__ if replay else None)))
        if captured:
            assert machine.last is captured_of(runner), "the step was captured"
    for slot in range(3):
        runner.free_slot(slot)
    return torch.cat(rows)


def both_ways(
    truth: Truth, names: tuple[str, str, str], captured: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with the true experts, and with the machine's own choice."""
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2])
    settings = EngineSettings(
        policies=policies, accelerator="cuda", max_step_tokens=160, max_sequences=4, threads=4
    )
    runner = on_store(truth.decoder, truth.store, settings, CAPACITY)
    scatter_blocks(runner.kv)
    if not captured:
        runner.machine.use_only_layerwise("asked for")
    try:
        return read(runner, truth, True, captured), read(runner, truth, False, captured)
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("name", "dtype", "names"),
    [
        ("qwen3-30b-a3b", "bf16", SPLIT),
        ("qwen3-30b-a3b", "bf16", ON_GPU),
        ("qwen3-30b-a3b", "int4", SPLIT),
        ("qwen3-30b-a3b", "int4", ON_GPU),
        ("deepseek-v2-lite", "bf16", SPLIT),
        ("deepseek-v2-lite", "int4", ON_GPU),
        ("deepseek-v2", "bf16", ON_GPU),
        ("deepseek-v3", "bf16", SPLIT),
        ("deepseek-v3, groups", "int4", ON_GPU),
    ],
)
def test_captured_prompts_are_as_near_the_truth(
    name: str, dtype: str, names: tuple[str, str, str]
) -> None:
    truth = truth_of(name, dtype)
    got = both_ways(truth, names, captured=True)
    want = both_ways(truth, names, captured=False)
    for replayed, ours, theirs in zip((True, False), got, want, strict=True):
        error, usual = errors(ours, truth.logits), errors(theirs, truth.logits)
        near, usually = ((each < NEAR).double().mean() for each in (error, usual))
        best, usual_best = same_best(ours, truth.logits), same_best(theirs, truth.logits)
        LOG.info(
            "%s %s %s, %s experts, captured and layerwise: median %.4f %.4f, most %.4f %.4f, "
            "near %.3f %.3f, best %.3f %.3f",
            name, dtype, names[0], "true" if replayed else "own", error.median(), usual.median(),
            error.max(), usual.max(), near, usually, best, usual_best,
        )  # fmt: skip
        assert error.median() < 1.25 * usual.median()
        assert best > usual_best - 0.06
        if replayed:
            assert error.max() < NEAR, int(error.argmax())
        else:
            assert near > usually - 0.06
