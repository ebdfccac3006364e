"""Do captured decode steps, in the engine, say what the same machine says layer by layer?"""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from graph_models import FAMILIES, shrunk
from random_experts import filled_store

from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner, SequenceInput
from moesaic.kernels.quantized_linear import DenseQuantizer
from moesaic.machines.cuda.cuda_machine import CudaMachine
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.policy_set import PolicySet

PROMPTS = ([5, 6, 7, 8, 900, 11, 3], [100, 200, 300], [9])
CAPACITY = Capacity(slots=20, sequences=4, length=300)


def runner_of(name: str, dtype: str, names: tuple[str, str, str], dense: str = "bf16") -> Runner:
    torch.manual_seed(0)
    architecture = shrunk(name)
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2])
    settings = EngineSettings(
        policies=policies, accelerator="cuda", max_step_tokens=160, max_sequences=4, threads=4
    )
    packer = DenseQuantizer(DensePrecision.of(dense))
    decoder = synthetic_decoder(architecture, "bf16", "reference", packer)
    return on_store(decoder, filled_store(architecture, dtype), settings, CAPACITY)


def conversation(runner: Runner, captured: bool) -> torch.Tensor:
    """Logits of prompts of several lengths and of tokens decoded after them, in batches of one to
    three, with another prompt in between."""
    machine = runner.machine
    assert isinstance(machine, CudaMachine)
    assert machine.layerwise_because is None
    graphs = machine._graphs
    if not captured:
        machine._graphs = None
    rows = [runner.step([SequenceInput(i, p) for i, p in enumerate(PROMPTS)])]
    for number in range(4):
        rows.append(runner.step([SequenceInput(i, [17 * number + i]) for i in range(3)]))
        rows.append(runner.step([SequenceInput(1, [40 + number])]))
        if number == 1:
            rows.append(runner.step([SequenceInput(3, [1, 2, 3, 4])]))
    if captured:
        assert graphs is not None
        assert graphs.has_slots, "the last steps were captured ones"
    check_slots(machine)
    runner.close()
    return torch.cat(rows).double()


def check_slots(machine: CudaMachine) -> None:
    """Every resident expert is in its slot, byte for byte."""
    machine._take_slots_back()
    for layer, expert in zip(*machine.residency.resident.nonzero(), strict=True):
        there = machine.slots.block(int(layer), int(expert))
        assert torch.equal(there.cpu(), machine.store.block(int(layer), int(expert)))


def agreement(got: torch.Tensor, want: torch.Tensor) -> float:
    """Share of rows that are the same but for rounding: a near tie of two experts may be decided
    otherwise, and changes a row."""
    assert got.isfinite().all()
    error = (got - want).norm(dim=1) / want.norm(dim=1)
    return float((error < 0.04).double().mean())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_decodes_as_layer_by_layer(name: str) -> None:
    names = ("hybrid", "mrs", "impact")
    got = conversation(runner_of(name, "bf16", names), captured=True)
    want = conversation(runner_of(name, "bf16", names), captured=False)
    assert agreement(got, want) > 0.85


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    "names",
    [
        ("best-split", "two-speed", "impact"),
        ("gpu-only", "lru", "none"),
        ("static-experts", "pinned", "none"),
    ],
)
def test_every_system_and_precision_decodes_as_layer_by_layer(
    dtype: str, names: tuple[str, str, str]
) -> None:
    got = conversation(runner_of("qwen3-30b-a3b", dtype, names), captured=True)
    want = conversation(runner_of("qwen3-30b-a3b", dtype, names), captured=False)
    assert agreement(got, want) > 0.85


@pytest.mark.parametrize("dense", ["int8", "int4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_dense_weights_in_integers_decode_as_layer_by_layer(name: str, dense: str) -> None:
    names = ("hybrid", "mrs", "impact")
    got = conversation(runner_of(name, "int4", names, dense), captured=True)
    want = conversation(runner_of(name, "int4", names, dense), captured=False)
    assert agreement(got, want) > 0.85


def test_a_copied_prefix_decodes_as_the_one_it_was_copied_from() -> None:
    """Right after the copy, by a graph, which has a stream of its own."""
    runner = runner_of("qwen3-30b-a3b", "bf16", ("gpu-only", "lru", "none"))
    prompt = [(37 * number) % 900 for number in range(40)]
    runner.step([SequenceInput(0, prompt[:32])])
    runner.step([SequenceInput(0, prompt[32:])])
    runner.step([SequenceInput(0, [1])])  # the graph is compiled and captured now
    runner.step([SequenceInput(0, [2])])
    rows = []
    for slot in (1, 2):
        runner.copy_prefix(0, slot, 40)
        rows.append(
            torch.cat([runner.step([SequenceInput(slot, [3 + number])]) for number in range(6)])
        )
    for both in (runner.cache.first, runner.cache.second):
        assert torch.equal(both[:, 1, :40], both[:, 0, :40])
    runner.cache.truncate(0, 40)
    whole = torch.cat([runner.step([SequenceInput(0, [3 + number])]) for number in range(6)])
    runner.close()
    for copied in rows:
        assert agreement(copied.double(), whole.double()) == 1.0
