"""Do captured decode steps, in the engine, say what the same machine says layer by layer?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from executors import captured_of, layers_of
from graph_models import DIFFERING, FAMILIES, shrunk
from random_experts import filled_store

from moesaic.core.layer_plan import LayerPlan
from moesaic.core.routing import LayerRouting
from moesaic.core.view import View
from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.kv.kv_blocks import Running
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.kernels.quantized_linear import DenseQuantizer
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.policy_set import PolicySet
from scattered_blocks import scatter_blocks

PROMPTS = ([5, 6, 7, 8, 900, 11, 3], [100, 200, 300], [9])
CAPACITY = Capacity(slots=20, sequences=4, length=300)
ROUNDING = 0.04  # of a row's norm
LOG = logging.getLogger(__name__)


def runner_of(
    name: str,
    dtype: str,
    names: tuple[str, str, str],
    dense: str = "bf16",
    capacity: Capacity = CAPACITY,
    scattered: bool = True,
) -> Runner:
    torch.manual_seed(0)
    architecture = shrunk(name)
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2])
    settings = EngineSettings(
        policies=policies, accelerator="cuda", max_step_tokens=160, max_sequences=4, threads=4
    )
    packer = DenseQuantizer(DensePrecision.of(dense))
    decoder = synthetic_decoder(architecture, "bf16", "reference", packer)
    runner = on_store(decoder, filled_store(architecture, dtype), settings, capacity)
    if scattered:
        scatter_blocks(runner.kv)
    return runner


Choices = list[list[LayerRouting]]  # by step and layer


def steps() -> Iterator[list[Piece]]:
    """Prompts of several lengths and tokens decoded after them, in batches of one to three, with
    another prompt in between."""
    yield [Piece(i, p) for i, p in enumerate(PROMPTS)]
    for number in range(4):
        yield [Piece(i, [17 * number + i]) for i in range(3)]
        yield [Piece(1, [40 + number])]
        if number == 1:
            yield [Piece(3, [1, 2, 3, 4])]


def long_steps() -> Iterator[list[Piece]]:
    """From 240 to 280 positions: blocks of keys are full, and a second piece begins."""
    text = [(37 * number) % 900 for number in range(240)]
    yield [Piece(0, text[:120])]
    yield [Piece(0, text[120:])]
    for number in range(40):
        yield [Piece(0, [(17 * number) % 900])]


Talk = Callable[[], Iterator[list[Piece]]]


def said(runner: Runner, choices: Choices | None = None, talk: Talk = steps) -> torch.Tensor:
    """Logits of a conversation, with a machine's own choice of experts or another's."""
    rows = []
    for number, inputs in enumerate(talk()):
        replay = None if choices is None else choices[number].__getitem__
        rows.append(runner.step(ForwardPass(inputs, replay=replay)))
    for slot in range(CAPACITY.sequences):
        runner.free_slot(slot)
    return torch.cat(rows).double()


def conversation(runner: Runner) -> torch.Tensor:
    """By captured steps."""
    rows = said(runner)
    close(runner)
    return rows


def close(runner: Runner) -> None:
    """After captured steps."""
    assert captured_of(runner).has_slots, "the last steps were captured ones"
    check_slots(runner)
    runner.close()


def driven(runner: Runner, talk: Talk = steps) -> tuple[torch.Tensor, Choices]:
    """The same conversation layer by layer, and which experts were chosen."""
    runner.machine.use_only_layerwise("it is compared")
    decide, layers = runner.brain.decide, runner.decoder.architecture.spec.num_moe_layers
    found: list[LayerRouting] = []

    def decided(routing: LayerRouting, view: View) -> LayerPlan:
        found.append(deepcopy(routing))
        return decide(routing, view)

    runner.brain.decide = decided  # type: ignore[method-assign]
    rows = said(runner, talk=talk)
    check_slots(runner)
    runner.close()
    return rows, [found[start : start + layers] for start in range(0, len(found), layers)]


def check_slots(runner: Runner) -> None:
    """Every resident expert is in its slot, byte for byte."""
    machine, layers = runner.machine, layers_of(runner)
    machine.executors[0].leave()
    for layer, expert in zip(*machine.residency.resident.nonzero(), strict=True):
        there = layers.slots.block(int(layer), int(expert))
        assert torch.equal(there.cpu(), machine.store.block(int(layer), int(expert)))


def apart(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Of every row, relative to its norm."""
    assert got.isfinite().all()
    return (got - want).norm(dim=1) / want.norm(dim=1)


def agreement(got: torch.Tensor, want: torch.Tensor) -> float:
    """Share of rows that are the same but for rounding: a near tie of two experts may be decided
    otherwise, and changes a row."""
    return float((apart(got, want) < ROUNDING).double().mean())


def compare(name: str, dtype: str, names: tuple[str, str, str], dense: str = "bf16") -> None:
    """With the same experts every row is the same but for rounding. Left to itself a router decides
    near ties by rounding, and everything that its sequence says from there on is another's."""
    want, choices = driven(runner_of(name, dtype, names, dense))
    runner = runner_of(name, dtype, names, dense)
    own, same = said(runner), said(runner, choices)
    close(runner)
    worst, alike = float(apart(same, want).max()), agreement(own, want)
    LOG.info("%s %s %s %s: worst %.4f, own alike %.2f", name, dtype, names[0], dense, worst, alike)
    assert worst < 0.03
    assert alike > 0.7


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite"])
def test_a_long_conversation_decodes_as_layer_by_layer(name: str) -> None:
    """Twice: the cache has what the first left, in front of and behind every position."""
    names = ("gpu-only", "lru", "none")
    want, choices = driven(runner_of(name, "bf16", names), long_steps)
    runner = runner_of(name, "bf16", names)
    for _ in range(2):
        got = said(runner, choices, long_steps)
        assert apart(got, want).max() < 0.03
    close(runner)


@pytest.mark.parametrize("name", [*FAMILIES, *DIFFERING])
def test_every_family_decodes_as_layer_by_layer(name: str) -> None:
    compare(name, "bf16", ("hybrid", "mrs", "impact"))


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
    compare("qwen3-30b-a3b", dtype, names)


@pytest.mark.parametrize("dense", ["int8", "int4"])
@pytest.mark.parametrize("name", [*FAMILIES, *DIFFERING])
def test_dense_weights_in_integers_decode_as_layer_by_layer(name: str, dense: str) -> None:
    compare(name, "int4", ("hybrid", "mrs", "impact"), dense)


def test_a_copied_prefix_decodes_as_the_one_it_was_copied_from() -> None:
    """Right after the copy, by a graph, which has a stream of its own."""
    runner = runner_of("qwen3-30b-a3b", "bf16", ("gpu-only", "lru", "none"))
    prompt = [(37 * number) % 900 for number in range(40)]
    runner.step(ForwardPass([Piece(0, prompt[:32])]))
    runner.step(ForwardPass([Piece(0, prompt[32:])]))
    runner.step(ForwardPass([Piece(0, [1])]))  # the graph is compiled and captured now
    runner.step(ForwardPass([Piece(0, [2])]))
    rows = []
    for slot in (1, 2):
        runner.kv.begin(slot, np.array(prompt), [Running(0, np.array(prompt))], length=64)
        assert runner.cache.length(slot) == 40
        rows.append(
            torch.cat(
                [runner.step(ForwardPass([Piece(slot, [3 + number])])) for number in range(6)]
            )
        )
    rows_of = [runner.cache.rows_of(slot, 40) for slot in (0, 1)]
    for both in (runner.cache.first, runner.cache.second):
        source, copy = (both.flatten(1, 2)[:, rows] for rows in rows_of)
        assert torch.equal(copy, source)
    runner.cache.truncate(0, 40)
    whole = torch.cat([runner.step(ForwardPass([Piece(0, [3 + number])])) for number in range(6)])
    runner.close()
    for copied in rows:
        assert agreement(copied.double(), whole.double()) == 1.0
